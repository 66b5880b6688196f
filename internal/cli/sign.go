package cli

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/trust"
)

// signedKinds are what mw sign signs, in the words of its flag.
func signedKinds() []string {
	var out []string
	for kind := range protocol.SignedKinds {
		out = append(out, string(kind))
	}
	slices.Sort(out)
	return out
}

func newSignCommand(app *App) *cobra.Command {
	var kind, actorType, principal, keyID, seed string
	cmd := &cobra.Command{
		Use:   "sign [FILE]",
		Short: "Sign a document of the protocol",
		Long: `Read an unsigned document as JSON ("-" or nothing reads standard input), sign it and
print its canonical bytes. Of a Command, what is missing of protocolVersion, actor,
actionId, correlationId and issuedAt is filled in. Nothing is sent.

Kinds: ` + strings.Join(signedKinds(), ", ") + `.`,
		Example: "  mw sign --principal urn:example:ada --key-id urn:example:ada:1 --seed ada.seed command.json",
		Args:    cobra.MaximumNArgs(1),
	}
	f := cmd.Flags()
	f.StringVar(&kind, "kind", string(protocol.KindCommand), "kind of the document")
	f.StringVar(&actorType, "type", client.Human, "type of the Principal: human, service or agent")
	f.StringVar(&principal, "principal", "", "id of the Principal that signs")
	f.StringVar(&keyID, "key-id", "", "id of its key")
	f.StringVar(&seed, "seed", "", "file with the seed of the key")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if principal == "" || keyID == "" || seed == "" {
			return Usagef("give --principal, --key-id and --seed")
		}
		if !slices.Contains(signedKinds(), kind) {
			return Usagef("--kind is one of %s", strings.Join(signedKinds(), ", "))
		}
		key, err := client.ReadSeed(seed)
		if err != nil {
			return err
		}
		file := "-"
		if len(args) == 1 {
			file = args[0]
		}
		b, err := app.readInput(file)
		if err != nil {
			return err
		}
		actor := client.Actor{Type: actorType, ID: principal}
		if kind == string(protocol.KindCommand) {
			if b, err = complete(b, actor); err != nil {
				return err
			}
		}
		doc, err := strictjson.Parse(b)
		if err != nil {
			return Usagef("%s is not strict JSON: %w", file, err)
		}
		signed, hash, err := trust.SignDocument(protocol.DocumentKind(kind), protocol.Raw(doc.Root().Raw()),
			trust.Signer{KeyID: keyID, Principal: actor, Private: key})
		if err != nil {
			return fmt.Errorf("sign: %w", err)
		}
		// A signature over something that no server takes helps nobody.
		if made, err := strictjson.Parse(signed); err != nil {
			return fmt.Errorf("sign: %w", err)
		} else if fault := protocol.Validate(protocol.DocumentKind(kind), made.Root()); fault != nil {
			return fmt.Errorf("this is no %s: %w", kind, fault)
		}
		if app.JSON {
			return app.PrintJSON(map[string]any{"signingHash": hash, "document": json.RawMessage(signed)})
		}
		_, err = fmt.Fprintf(app.Out, "%s\n", signed)
		return err
	}
	return cmd
}

// complete fills in what every Command has.
func complete(b []byte, actor client.Actor) ([]byte, error) {
	doc, err := strictjson.Parse(b)
	if err != nil || doc.Root().Kind() != strictjson.Object {
		return nil, Usagef("the Command is no JSON object (%v)", err)
	}
	members := map[string]any{}
	for name, v := range doc.Root().Members() {
		members[name] = protocol.Raw(v.Raw())
	}
	id := client.NewID()
	for name, value := range map[string]any{
		"protocolVersion": protocol.Version, "actor": actor, "actionId": id, "issuedAt": client.Timestamp(time.Now()),
	} {
		if members[name] == nil {
			members[name] = value
		}
	}
	if members["correlationId"] == nil {
		members["correlationId"] = members["actionId"]
	}
	return strictjson.Marshal(members)
}
