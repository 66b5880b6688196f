package casefile

import (
	"fmt"
	"strconv"
	"time"

	"github.com/missionweave/server/internal/manifest"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// desk is a naive approval desk: what requests, answers and uses do to each other.
type desk struct {
	now  time.Time
	list []*asked
}

type asked struct {
	approval manifest.Approval
	decision string
	expires  time.Time
}

// mainSession is the session of steps that name none.
const mainSession = "main"

// approvals plays steps against the desk; the last check is the answer.
func (p *play) approvals(want *expected, out *Outcome) error {
	out.Expected = "allowed=" + strconv.FormatBool(*want.allowed)
	d := desk{now: start}
	allowed := false
	err := p.object("context", p.c.Context, map[string]func(strictjson.Value) error{
		"mode": nil,
		"steps": func(v strictjson.Value) error {
			for i, step := range v.Items() {
				if err := p.step(&d, step, &allowed); err != nil {
					return fmt.Errorf("step %d: %w", i, err)
				}
			}
			return nil
		},
	})
	if err != nil {
		return err
	}
	out.Got = "allowed=" + strconv.FormatBool(allowed)
	out.Passed = allowed == *want.allowed
	return nil
}

func (p *play) step(d *desk, step strictjson.Value, allowed *bool) error {
	var op, tool, decision string
	session := mainSession
	var args strictjson.Value
	ttl, span := 300*time.Second, time.Duration(0)
	spanOf := func(v strictjson.Value) error { span = seconds(v); return nil }
	if err := p.members("step", step, map[string]func(strictjson.Value) error{
		"op": into(&op), "tool": into(&tool), "action_type": into(&tool), "decision": into(&decision),
		"session": into(&session), "session_id": into(&session),
		"args":       func(v strictjson.Value) error { args = v; return nil },
		"parameters": func(v strictjson.Value) error { args = v; return nil },
		"ttl":        func(v strictjson.Value) error { ttl = seconds(v); return nil },
		"at":         func(v strictjson.Value) error { d.now = start.Add(seconds(v)); return nil },
		"after":      func(v strictjson.Value) error { d.now = d.now.Add(seconds(v)); return nil },
		"seconds":    spanOf, "by": spanOf, "duration": spanOf, "s": spanOf, "delta": spanOf,
	}); err != nil {
		return err
	}
	digest := ""
	if op == "request" || op == "check" {
		if !args.Exists() {
			var err error
			if args, err = strictjson.Raw(`{}`).Value(); err != nil {
				return err
			}
		}
		var err error
		if digest, err = manifest.ParametersDigest(args); err != nil {
			return err
		}
	}
	switch op {
	case "request":
		d.list = append(d.list, &asked{expires: d.now.Add(ttl), approval: manifest.Approval{
			ActionType: tool, ParametersDigest: digest, ArgsEquality: manifest.ArgsEquality, Session: session, ExpiresAt: d.now.Add(ttl),
		}})
	case "resolve":
		// The first answer stands, and one after the time is over grants nothing.
		if n := len(d.list); n > 0 && d.list[n-1].decision == "" {
			if !d.now.Before(d.list[n-1].expires) {
				decision = "expired"
			}
			d.list[n-1].decision = decision
		}
	case "check":
		*allowed = d.use(tool, digest, session)
	case "advance", "wait", "sleep", "elapse", "tick", "pass":
		d.now = d.now.Add(span)
	case "expire":
		for _, a := range d.list {
			a.approval.ExpiresAt, a.expires = d.now, d.now
		}
	default:
		return fmt.Errorf("the operation %s is not understood", strconv.Quote(op))
	}
	return nil
}

// use uses up the first approval that covers the call.
func (d *desk) use(tool, digest, session string) bool {
	r := manifest.Request{Action: tool, Session: session, Now: d.now}
	for _, a := range d.list {
		if a.decision == "" || !granted(a.decision) {
			continue
		}
		if ok, _ := a.approval.Covers(&r, digest, ""); ok {
			a.approval.Consumed = true
			return true
		}
	}
	return false
}
