package scenario

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/missionweave/server/client"
)

// timeline prints what happens as it happens: on a terminal each Mission in a
// column of its own, side by side; otherwise plain lines.
type timeline struct {
	mu      sync.Mutex
	out     io.Writer
	columns int
	color   bool
	started time.Time
	nameOf  func(id string) string
	headed  bool
}

// narrowest is the width below which columns are of no use.
const narrowest = 80

func newTimeline(out io.Writer, columns int, color bool) *timeline {
	if columns < narrowest {
		columns = 0
	}
	return &timeline{out: out, columns: columns, color: color, started: time.Now(), nameOf: func(id string) string { return id }}
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

func (t *timeline) seconds() float64 { return time.Since(t.started).Seconds() }

func (t *timeline) scene(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.printf("%s", t.paint("1", fmt.Sprintf("%7.2f  == %s", t.seconds(), name)))
}

// check prints a claim as it is made. A terminal shows as much of the proof as
// there is room for; the table at the end has the rest.
func (t *timeline) check(k Check) {
	t.mu.Lock()
	defer t.mu.Unlock()
	mark, code := "ok ", "32"
	if !k.OK {
		mark, code = "NOT", "1;31"
	}
	t.printf("%s", t.paint(code, t.cut(fmt.Sprintf("%7.2f  %s %s: %s", t.seconds(), mark, k.Name, k.Proof))))
}

// cut ends a line where the terminal ends.
func (t *timeline) cut(line string) string {
	if t.columns == 0 || utf8.RuneCountInString(line) <= t.columns {
		return line
	}
	return strings.TrimRight(fit(line, t.columns), " ")
}

// note prints something that is no Event.
func (t *timeline) note(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.printf("%s", t.paint("2", t.cut(fmt.Sprintf("%7.2f  -- %s", t.seconds(), fmt.Sprintf(format, args...)))))
}

// event prints an Event in its Mission's column.
func (t *timeline) event(m *mission, e client.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	kind := strings.TrimPrefix(strings.TrimPrefix(e.Kind, "ext.missionweaveprotocol."), "ext.missionweave.")
	who := t.nameOf(e.Actor.ID)
	if e.Actor.Type == client.Service {
		who = "server"
	}
	what := ""
	if e.WorkItemID != "" {
		what = t.nameOf(e.WorkItemID)
	}
	if t.columns == 0 {
		t.printf("%s", strings.TrimRight(fmt.Sprintf("%7.2f  %-12s %4d  %-32s %-14s %s", t.seconds(), m.name, e.Sequence, kind, who, what), " "))
		return
	}
	width := (t.columns - 9 - 3) / 2
	t.heads(width)
	text := fmt.Sprintf("%4d %s %s", e.Sequence, kind, what+" · "+who)
	if what == "" {
		text = fmt.Sprintf("%4d %s · %s", e.Sequence, kind, who)
	}
	if m.column > 1 { // a Mission that came later stands in the column of the one it belongs to
		text = "└ " + m.name + " " + strings.TrimSpace(text)
	}
	text = t.paint(hue(e.Kind), fit(text, width))
	left, right := text, ""
	if m.column%2 == 1 {
		left, right = strings.Repeat(" ", width), text
	}
	t.printf("%7.2f  %s %s %s", t.seconds(), left, t.paint("2", "│"), right)
}

// heads names the columns once.
func (t *timeline) heads(width int) {
	if t.headed {
		return
	}
	t.headed = true
	t.printf("         %s %s %s", t.paint("1", fit(billing, width)), t.paint("2", "│"), t.paint("1", search))
	line := strings.Repeat("─", width+1)
	t.printf("         %s", t.paint("2", line+"┼"+line))
}

// fit cuts or fills to a number of characters.
func fit(s string, width int) string {
	n := utf8.RuneCountInString(s)
	if n > width {
		return string([]rune(s)[:max(0, width-1)]) + "…"
	}
	return s + strings.Repeat(" ", width-n)
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
	case strings.HasPrefix(kind, "artifact."), strings.HasPrefix(kind, "approval."):
		return "36"
	default:
		return "33"
	}
}

// table prints every check by scene, then what the scenario is there to show, then
// the verdict.
func (t *timeline) table(r *Report) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.printf("")
	scene := ""
	for _, k := range r.Checks {
		if k.Scene != scene {
			scene = k.Scene
			t.printf("%s", t.paint("1", scene))
		}
		mark := t.paint("32", "ok ")
		if !k.OK {
			mark = t.paint("1;31", "NOT")
		}
		t.printf("  %s %s", mark, k.Name)
		for _, line := range wrap(k.Proof, max(t.columns, narrowest+20)-6) {
			t.printf("      %s", t.paint("2", line))
		}
	}
	t.printf("")
	t.printf("%s", t.paint("1", "What the scenario shows"))
	for _, p := range r.Promises {
		mark := t.paint("32", "ok ")
		if p.Held != p.Checks || p.Checks == 0 {
			mark = t.paint("1;31", "NOT")
		}
		t.printf("  %s %-58s %2d of %2d checks", mark, p.Promise, p.Held, p.Checks)
	}
	t.printf("")
	verdict := t.paint("1;32", "everything holds")
	if !r.OK {
		verdict = t.paint("1;31", fmt.Sprintf("%d failed", r.Failed))
		for _, k := range r.Checks {
			if !k.OK {
				t.printf("%s %s: %s", t.paint("1;31", "  NOT"), k.Scene, k.Name)
			}
		}
	}
	t.printf("%d checks, %s; %d Events in %d Missions, %.1f s, seed %d", r.Passed+r.Failed, verdict, r.Events, len(r.Missions), r.Seconds, r.Seed)
}

// wrap breaks a text between words into lines of at most so many characters.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	if line != "" {
		lines = append(lines, fit(line, min(width, utf8.RuneCountInString(line))))
	}
	return lines
}
