package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/missionweave/server/client"
)

// operator is whom the commands that talk to a running server speak for: a
// Principal of a dev stack by its role, or another human by a seed file.
type operator struct {
	stack, data, role    string
	principal, key, seed string
}

func (o *operator) flags(cmd *cobra.Command) {
	f := cmd.PersistentFlags()
	f.StringVar(&o.stack, "stack", "", "dev.json of a running server")
	f.StringVar(&o.stack, "dev-json", "", "the same as --stack")
	f.StringVar(&o.data, "data", ".data", "folder of mw dev, for its dev.json")
	f.StringVar(&o.role, "as", "mission-owner", "role of the Principal to speak for, as dev.json lists them")
	f.StringVar(&o.principal, "principal", "", "id of another human to speak for")
	f.StringVar(&o.key, "key-id", "", "id of that human's key")
	f.StringVar(&o.seed, "seed", "", "file with the seed of that key")
}

// connect makes a Client.
func (o *operator) connect() (*client.Client, error) {
	path := o.stack
	if path == "" {
		path = o.data + "/dev.json"
	}
	stack, err := client.ReadDevStack(path)
	if err != nil {
		return nil, Unavailable(fmt.Errorf("%w; is mw dev running?", err))
	}
	identity, err := o.identity(stack)
	if err != nil {
		return nil, err
	}
	return stack.Connect(identity)
}

func (o *operator) identity(stack *client.DevStack) (client.Identity, error) {
	if o.principal == "" && o.key == "" && o.seed == "" {
		return stack.Identity(o.role)
	}
	if o.principal == "" || o.key == "" || o.seed == "" {
		return client.Identity{}, Usagef("give --principal, --key-id and --seed together")
	}
	key, err := client.ReadSeed(o.seed)
	if err != nil {
		return client.Identity{}, err
	}
	return client.Identity{Principal: client.Actor{Type: client.Human, ID: o.principal}, KeyID: o.key, Key: key}, nil
}

// patience bounds one command that waits for answers: a server that is away is
// said, not waited for.
const patience = 30 * time.Second

// with runs f with a Client. Whatever does not end by itself sets endless.
func (o *operator) with(ctx context.Context, endless bool, f func(context.Context, *client.Client) error) error {
	c, err := o.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	probe, done := context.WithTimeout(ctx, 5*time.Second)
	defer done()
	if err := c.Probe(probe); err != nil {
		return Unavailable(fmt.Errorf("nothing answers (%w); is mw dev running?", err))
	}
	if !endless {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	err = f(ctx, c)
	if errors.Is(err, context.DeadlineExceeded) {
		return Unavailable(err)
	}
	return err
}

// membershipEpoch is the operator's own in a Group.
func membershipEpoch(ctx context.Context, c *client.Client, groupID string) (int64, error) {
	members, err := c.Memberships(ctx, groupID)
	if err != nil {
		return 0, err
	}
	for _, m := range members {
		if m.Member == c.Principal() {
			return m.MembershipEpoch, nil
		}
	}
	return 0, fmt.Errorf("%s is no member of Group %s", c.Principal().ID, groupID)
}

// post sends a Command of a member and prints its receipt.
func (a *App) post(ctx context.Context, c *client.Client, cmd client.Command, payload any) error {
	epoch, err := membershipEpoch(ctx, c, cmd.GroupID)
	if err != nil {
		return err
	}
	cmd.MembershipEpoch = epoch
	receipt, err := c.Post(ctx, cmd, payload)
	if err != nil {
		return err
	}
	if a.JSON {
		return a.PrintJSON(receipt)
	}
	for _, e := range receipt.Events {
		if _, err := fmt.Fprintf(a.Out, "%s #%d %s\n", e.Kind, e.Sequence, e.EventID); err != nil {
			return err
		}
	}
	return nil
}
