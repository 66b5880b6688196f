package demo

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/missionweave/server/client"
)

// timeline prints what happens as it happens. Several actors print at once.
type timeline struct {
	mu      sync.Mutex
	out     io.Writer
	color   bool
	started time.Time
	items   int
	done    int
}

func newTimeline(out io.Writer, color bool) *timeline {
	return &timeline{out: out, color: color, started: time.Now()}
}

func (t *timeline) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(t.out, format+"\n", args...)
}

func (t *timeline) paint(code, s string) string {
	if !t.color {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (t *timeline) cast(c *cast) {
	var names []string
	for _, w := range c.workers {
		names = append(names, w.name)
	}
	t.printf("MissionOwner   %s", c.owner.Principal().ID)
	t.printf("Coordinator    %s", c.coordinator.Principal().ID)
	t.printf("Workers        %s", strings.Join(names, ", "))
	t.printf("")
	t.printf("%6s  %7s  %-34s %-14s %s", "seq", "seconds", "Event", "by", "what")
}

// note prints something that is no Event.
func (t *timeline) note(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.printf("%6s  %7.2f  %s", "", time.Since(t.started).Seconds(), t.paint("2", fmt.Sprintf(format, args...)))
}

// event prints one Event: sequence, time, kind, who and what.
func (t *timeline) event(e client.Event, p *plan) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.items = len(p.file.All())
	who := p.cast.names[e.Actor.ID]
	if who == "" {
		who = e.Actor.Type
	}
	kind := strings.TrimPrefix(strings.TrimPrefix(e.Kind, "ext.missionweaveprotocol."), "ext.missionweave.")
	what := p.names[e.WorkItemID]
	if e.Kind == "work.result.accepted" {
		t.done++
		what = fmt.Sprintf("%-16s %s", what, t.progress())
	} else if s := describe(e, p); s != "" {
		what = strings.TrimSpace(fmt.Sprintf("%-16s %s", what, s))
	}
	t.printf("%6d  %7.2f  %s %-14s %s", e.Sequence, time.Since(t.started).Seconds(),
		t.paint(hue(e.Kind), fmt.Sprintf("%-34s", kind)), who, what)
}

func (t *timeline) progress() string {
	return "[" + strings.Repeat("#", t.done) + strings.Repeat(".", max(0, t.items-t.done)) + fmt.Sprintf("] %d/%d verified", t.done, t.items)
}

// hue groups kinds by family.
func hue(kind string) string {
	switch {
	case strings.HasPrefix(kind, "mission."):
		return "1;35"
	case strings.HasPrefix(kind, "membership."):
		return "34"
	case strings.HasPrefix(kind, "message."):
		return "2"
	case kind == "work.result.accepted":
		return "1;32"
	case strings.HasPrefix(kind, "artifact."):
		return "36"
	default:
		return "33"
	}
}

// describe says the one thing a reader wants to know of an Event.
func describe(e client.Event, p *plan) string {
	var f struct {
		facts
		Message  *client.Message  `json:"message"`
		Approval *client.Approval `json:"approval"`
	}
	if err := client.Decode(e.Payload, &f); err != nil {
		return ""
	}
	switch {
	case f.Message != nil:
		return quote(f.Message.Content[0].Text)
	case f.Approval != nil:
		return quote(f.Approval.Comments)
	case f.Artifact != nil:
		return fmt.Sprintf("%s, %d bytes", f.Artifact.MediaType, f.Artifact.SizeBytes)
	case f.Membership != nil:
		return fmt.Sprintf("%s joins as %s", p.cast.names[f.Membership.Member.ID], f.Membership.Role)
	case e.Kind == "work.offer.created":
		var to []string
		for _, o := range f.Offers {
			to = append(to, p.cast.names[o.AgentID])
		}
		return "to " + strings.Join(to, ", ")
	case e.Kind == "work.offer.accepted":
		return fmt.Sprintf("Ownership Epoch %d", f.Owner.OwnershipEpoch)
	case e.Kind == "mission.submitted_for_approval":
		return fmt.Sprintf("%d Artifacts at revision %d", len(f.ArtifactHashes), f.MissionRevision)
	}
	return ""
}

func quote(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > 72 {
		s = string(r[:71]) + "…"
	}
	return "“" + s + "”"
}
