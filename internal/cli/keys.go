package cli

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/devorg"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/server"
)

func newKeysCommand(app *App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keys",
		Short: "Make, register, rotate and revoke keys",
		Args:  cobra.NoArgs,
		RunE:  needsSubcommand,
	}
	cmd.AddCommand(newKeysNewCommand(app), newKeysRegisterCommand(app), newKeysRevokeCommand(app),
		newKeysListCommand(app), newKeysRotateCommand(app))
	return cmd
}

func newKeysNewCommand(app *App) *cobra.Command {
	var kind, principal, keyID, out string
	cmd := &cobra.Command{
		Use:   "new",
		Short: "Make a key for a human or a service",
		Long: `Make an Ed25519 key: its 32-byte seed goes to a file of mode 0600 that must not
exist, its binding to standard output, for mw keys register.`,
		Example: "  mw keys new --type human --principal urn:example:ada --out ada.seed --json > ada.json",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().StringVar(&kind, "type", client.Human, "type of the Principal: human, service or agent")
	cmd.Flags().StringVar(&principal, "principal", "", "id of the Principal")
	cmd.Flags().StringVar(&keyID, "key-id", "", "id of the key, empty for a fresh one")
	cmd.Flags().StringVar(&out, "out", "", "file for the seed")
	cmd.RunE = func(*cobra.Command, []string) error {
		if principal == "" || out == "" {
			return Usagef("give --principal and --out")
		}
		identity, err := client.NewIdentity(client.Actor{Type: kind, ID: principal})
		if err != nil {
			return err
		}
		if keyID != "" {
			identity.KeyID = keyID
		}
		f, err := os.OpenFile(out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return fmt.Errorf("write the seed: %w", err)
		}
		_, err = fmt.Fprintln(f, base64.RawURLEncoding.EncodeToString(identity.Key.Seed()))
		if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
			return fmt.Errorf("write the seed: %w", err)
		}
		binding := bindingOf(identity)
		if app.JSON {
			return app.PrintJSON(binding)
		}
		_, err = fmt.Fprintf(app.Out, "%s\nprincipal %s %s\npublic key %s\n", binding.KeyID, kind, principal, binding.PublicKey)
		return err
	}
	return cmd
}

func bindingOf(identity client.Identity) client.KeyBinding {
	return client.KeyBinding{
		KeyID: identity.KeyID, Principal: identity.Principal, Algorithm: "Ed25519",
		PublicKey: identity.PublicKey(), ValidFrom: client.Timestamp(time.Now()),
	}
}

// registrar is a Client of the registry service of a dev stack.
func registrar(stack string) (*client.Client, error) {
	if stack == "" {
		return nil, Usagef("give --stack, the dev.json of a dev stack")
	}
	dev, err := client.ReadDevStack(stack)
	if err != nil {
		return nil, Unavailable(err)
	}
	identity, err := dev.Identity(string(registry.RoleRegistry))
	if err != nil {
		return nil, err
	}
	return dev.Connect(identity)
}

func newKeysRegisterCommand(app *App) *cobra.Command {
	var stack, kind, principal, keyID, seed string
	cmd := &cobra.Command{
		Use:     "register",
		Short:   "Register a key of a human or a service at the Registry",
		Example: "  mw keys register --stack .data/dev.json --type human --principal urn:example:ada --key-id urn:example:ada:1 --seed ada.seed",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().StringVar(&stack, "stack", "", "dev.json of a running dev stack")
	cmd.Flags().StringVar(&kind, "type", client.Human, "type of the Principal: human or service")
	cmd.Flags().StringVar(&principal, "principal", "", "id of the Principal")
	cmd.Flags().StringVar(&keyID, "key-id", "", "id of the key")
	cmd.Flags().StringVar(&seed, "seed", "", "file with the seed that mw keys new made; only its public key is sent")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if principal == "" || keyID == "" || seed == "" {
			return Usagef("give --principal, --key-id and --seed")
		}
		key, err := client.ReadSeed(seed)
		if err != nil {
			return err
		}
		c, err := registrar(stack)
		if err != nil {
			return err
		}
		defer c.Close()
		binding := bindingOf(client.Identity{Principal: client.Actor{Type: kind, ID: principal}, KeyID: keyID, Key: key})
		if err := c.RegisterKey(cmd.Context(), binding); err != nil {
			return err
		}
		if app.JSON {
			return app.PrintJSON(binding)
		}
		_, err = fmt.Fprintf(app.Out, "registered %s\n", keyID)
		return err
	}
	return cmd
}

func newKeysRevokeCommand(app *App) *cobra.Command {
	var stack string
	cmd := &cobra.Command{
		Use:   "revoke KEYID",
		Short: "Revoke a key: from now on it signs nothing",
		Args:  cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&stack, "stack", "", "dev.json of a running dev stack")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := registrar(stack)
		if err != nil {
			return err
		}
		defer c.Close()
		at := client.Timestamp(time.Now())
		if err := c.EndKey(cmd.Context(), args[0], "", at); err != nil {
			return err
		}
		if app.JSON {
			return app.PrintJSON(map[string]string{"keyId": args[0], "revokedAt": at})
		}
		_, err = fmt.Fprintf(app.Out, "revoked %s at %s\n", args[0], at)
		return err
	}
	return cmd
}

// keyOptions are the database and the key folder of a dev stack, or the configured
// ones.
func (a *App) keyOptions(stack string) (server.Options, error) {
	url, err := a.databaseOf(stack)
	if err != nil {
		return server.Options{}, err
	}
	settings := *a.Settings
	settings.DatabaseURL = url
	dir := settings.KeysDir
	switch {
	case stack != "":
		dir = filepath.Join(filepath.Dir(stack), "keys")
	case dir == "":
		dir = filepath.Join(settings.DataDir, "keys")
	}
	keys, err := devorg.Load(dir)
	if err != nil {
		return server.Options{}, err
	}
	return server.Options{Settings: &settings, Keys: keys, Log: a.Log}, nil
}

var keySettings = []string{"databaseUrl", "databaseMaxConns", "dataDir", "keysDir", "logLevel", "logFormat"}

func newKeysListCommand(app *App) *cobra.Command {
	var stack string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the keys that sign tokens and their place in the rotation",
		Args:  cobra.NoArgs,
	}
	app.UseSettings(cmd, keySettings...)
	cmd.Flags().StringVar(&stack, "stack", "", "dev.json of a dev stack, for its database and keys")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o, err := app.keyOptions(stack)
		if err != nil {
			return err
		}
		set, err := server.SigningKeys(cmd.Context(), o)
		if err != nil {
			return err
		}
		if app.JSON {
			return app.PrintJSON(set)
		}
		w := tabwriter.NewWriter(app.Out, 0, 4, 2, ' ', 0)
		fmt.Fprintln(w, "STATE\tISSUER\tKEY")
		for _, k := range set.Keys {
			fmt.Fprintf(w, "%s\t%s\t%s\n", k.State, k.Issuer, k.KeyID)
		}
		return w.Flush()
	}
	return cmd
}

func newKeysRotateCommand(app *App) *cobra.Command {
	var stack, role string
	d := server.DefaultRotation("")
	after, grace := d.After, d.Grace
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Follow the key of a token-signing service by a new one, while everything runs",
		Long: `Make the next key of the authorization or the identity service, register it, and
let it sign from a moment on. Until then it is published as passive, so that tools
that check offline know it; afterwards the old one is retired: it signs no more,
and stays valid for as long as what it signed. Services with the same key folder
take the new key over without a restart; others go on with the old one until it
ends, and must have been given the new seed by then.`,
		Example: "  mw keys rotate --stack .data/dev.json --role authorization",
		Args:    cobra.NoArgs,
	}
	app.UseSettings(cmd, keySettings...)
	cmd.Flags().StringVar(&stack, "stack", "", "dev.json of a dev stack, for its database and keys")
	cmd.Flags().StringVar(&role, "role", string(registry.RoleAuthorization), "authorization or identity")
	cmd.Flags().DurationVar(&after, "after", after, "how long the new key is published before it signs")
	cmd.Flags().DurationVar(&grace, "grace", grace, "how long the old key stays valid after that")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if role != string(registry.RoleAuthorization) && role != string(registry.RoleIdentity) {
			return Usagef("--role is authorization or identity")
		}
		if after < 0 || grace < 0 {
			return Usagef("--after and --grace cannot be negative")
		}
		o, err := app.keyOptions(stack)
		if err != nil {
			return err
		}
		done, err := server.RotateKey(cmd.Context(), o, server.KeyRotation{Role: registry.Role(role), After: after, Grace: grace})
		if err != nil {
			return err
		}
		if app.JSON {
			return app.PrintJSON(done)
		}
		_, err = fmt.Fprintf(app.Out, "%s signs for %s from %s\n%s is valid until %s\n", done.KeyID, role, done.SignsFrom, done.Replaces, done.ValidUntil)
		return err
	}
	return cmd
}
