package protocol_test

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

// mutator changes documents at random, towards the edges of the rules.
type mutator struct {
	rng    *rand.Rand
	oracle *oracle
	corpus []*tree            // sources of foreign values
	byName map[string][]*tree // values that some document has under a name
}

// newMutator makes a mutator whose choices depend on seed and i alone.
func newMutator(seed, i uint64, judge *oracle, corpus []*tree, byName map[string][]*tree) *mutator {
	return &mutator{rand.New(rand.NewPCG(seed, i)), judge, corpus, byName}
}

// indexNames finds the values that documents have under each member name.
func indexNames(docs []*tree) map[string][]*tree {
	index := map[string][]*tree{}
	var walk func(*tree)
	walk = func(t *tree) {
		for i, kid := range t.kids {
			if t.kind == strictjson.Object {
				index[t.names[i]] = append(index[t.names[i]], kid)
			}
			walk(kid)
		}
	}
	for _, doc := range docs {
		walk(doc)
	}
	return index
}

func pick[T any](m *mutator, list []T) T { return list[m.rng.IntN(len(list))] }

// place is a node and where it hangs.
type place struct {
	parent *tree
	at     int
	name   string // decoded-ish member name, for vocabulary
}

func (m *mutator) places(t *tree, name string, out []place) []place {
	for i, kid := range t.kids {
		if t.kind == strictjson.Object {
			name = strings.Trim(t.names[i], `"`)
		}
		out = append(out, place{t, i, name})
		out = m.places(kid, name, out)
	}
	return out
}

func (p place) node() *tree     { return p.parent.kids[p.at] }
func (p place) replace(t *tree) { p.parent.kids[p.at] = t }

// mutate changes doc. Half of the time the changes are soft: such as may well
// keep it valid, several at once, so that conditional rules meet; else they are
// rough.
func (m *mutator) mutate(doc *tree) *tree {
	root := &tree{kind: strictjson.Array, kids: []*tree{doc}}
	soft := m.rng.IntN(2) == 0
	changes := 1 + m.rng.IntN(4)/2
	if soft {
		changes = 1 + m.rng.IntN(5)
	}
	for range changes {
		p := pick(m, m.places(root, "", nil))
		if soft || m.rng.IntN(3) == 0 {
			m.soft(p)
		} else {
			m.rough(p)
		}
	}
	return root.kids[0]
}

func (m *mutator) soft(p place) {
	switch m.rng.IntN(8) {
	case 0:
		m.drop(p)
	case 1:
		m.addMember(p.node(), true)
	case 2:
		m.addMember(p.parent, true)
	case 3, 4:
		m.word(p)
	case 5:
		m.pad(p)
	case 6:
		m.duplicate(p.node(), p.parent)
	case 7:
		if same := m.byName[quote(p.name)]; len(same) > 0 {
			p.replace(pick(m, same).clone())
		}
	}
}

func (m *mutator) rough(p place) {
	switch m.rng.IntN(12) {
	case 0:
		m.drop(p)
	case 1:
		m.addMember(p.node(), false)
	case 2:
		m.addMember(p.parent, false)
	case 3:
		m.duplicate(p.node(), p.parent)
	case 4:
		p.replace(scalar(pick(m, retypes)))
	case 5:
		p.replace(m.foreign().clone())
	case 6, 7:
		m.text(p)
	case 8:
		p.replace(scalar(quote(pick(m, texts))))
	case 9:
		p.replace(scalar(pick(m, numbers)))
	case 10:
		m.length(p)
	case 11:
		m.nest(p)
	}
}

// word puts another word of the member's vocabulary in its place: in every
// second case a discriminating one of the whole document.
func (m *mutator) word(p place) {
	if words := m.oracle.words[p.name]; len(words) > 0 {
		p.replace(scalar(quote(pick(m, words))))
		return
	}
	for i, name := range p.parent.names {
		if words := m.oracle.words[strings.Trim(name, `"`)]; len(words) > 0 && m.rng.IntN(2) == 0 {
			p.parent.kids[i] = scalar(quote(pick(m, words)))
			return
		}
	}
}

// pad brings a string, a number or an array to the edge of a bound that the
// schemas name for its member, keeping its form where it can.
func (m *mutator) pad(p place) {
	bounds := m.oracle.bounds[p.name]
	if len(bounds) == 0 {
		return
	}
	n := pick(m, bounds) + m.rng.IntN(3) - 1
	switch t := p.node(); t.kind {
	case strictjson.Number:
		p.replace(scalar(strconv.Itoa(n)))
	case strictjson.Array:
		for len(t.kids) > max(n, 0) {
			t.kids = t.kids[:len(t.kids)-1]
		}
	case strictjson.String:
		inner := t.text[1 : len(t.text)-1]
		if n > 1<<17 || strings.Contains(inner, `\`) {
			return
		}
		join := pick(m, []string{"", "", "-", ".", "é"})
		unit := pick(m, []string{"a", "0", "A", "é", "\U0001F9F6"})
		if inner != "" && m.rng.IntN(2) == 0 && inner[len(inner)-1] < 0x80 {
			join, unit = "", inner[len(inner)-1:]
		}
		have := utf8.RuneCountInString(inner)
		if have >= n {
			runes := []rune(inner)
			inner = string(runes[:max(n, 0)])
		} else if need := n - have - utf8.RuneCountInString(join); need >= 0 {
			inner += join + strings.Repeat(unit, need)
		}
		p.replace(&tree{kind: strictjson.String, text: `"` + inner + `"`})
	}
}

// fitting finds the schema object that t has most members of.
func (m *mutator) fitting(t *tree) []string {
	var best []string
	most := -1
	for _, names := range m.oracle.objects {
		common := 0
		for _, name := range names {
			if slices.Contains(t.names, quote(name)) {
				common += 2
			} else {
				common--
			}
		}
		if common > most || best == nil {
			best, most = names, common
		}
	}
	return best
}

func scalar(text string) *tree {
	t := &tree{text: text}
	switch text[0] {
	case '"':
		t.kind = strictjson.String
	case 'n':
		t.kind = strictjson.Null
	case 't', 'f':
		t.kind = strictjson.Bool
	case '[':
		return &tree{kind: strictjson.Array}
	case '{':
		return &tree{kind: strictjson.Object}
	default:
		t.kind = strictjson.Number
	}
	return t
}

func (m *mutator) foreign() *tree {
	places := m.places(pick(m, m.corpus), "", nil)
	return pick(m, places).node()
}

func (m *mutator) drop(p place) {
	if len(p.parent.kids) == 1 && p.parent.kind == strictjson.Array && len(p.parent.names) == 0 && p.at == 0 && p.name == "" {
		return // the document itself
	}
	p.parent.kids = slices.Delete(p.parent.kids, p.at, p.at+1)
	if p.parent.kind == strictjson.Object {
		p.parent.names = slices.Delete(p.parent.names, p.at, p.at+1)
	}
}

// addMember adds a member: of the object's own kind, or of any object.
func (m *mutator) addMember(t *tree, own bool) {
	if t.kind != strictjson.Object {
		return
	}
	names := pick(m, m.oracle.objects)
	if own {
		names = m.fitting(t)
	}
	name := quote(pick(m, names))
	if !own && m.rng.IntN(4) == 0 {
		name = pick(m, []string{`""`, `"note"`, `"a/b~c"`, `"\ud800"`, `"\u00e9"`, `"urn:x:y"`, `"https://x.example/p"`, `"x"`})
	}
	if slices.Contains(t.names, name) {
		return
	}
	value := m.foreign()
	if same := m.byName[name]; len(same) > 0 && m.rng.IntN(8) > 0 {
		value = pick(m, same)
	}
	at := m.rng.IntN(len(t.names) + 1)
	t.names = slices.Insert(t.names, at, name)
	t.kids = slices.Insert(t.kids, at, value.clone())
}

// duplicate repeats array items, with members in another order and numbers in
// another spelling half of the time; sometimes often enough for the long path.
func (m *mutator) duplicate(t, parent *tree) {
	if t.kind != strictjson.Array {
		t = parent
	}
	if t.kind != strictjson.Array || len(t.kids) == 0 {
		return
	}
	times := 1
	if m.rng.IntN(4) == 0 {
		times = 1 + m.rng.IntN(30)
	}
	for range times {
		c := pick(m, t.kids).clone()
		if m.rng.IntN(2) == 0 {
			respell(m, c)
		}
		if m.rng.IntN(3) == 0 {
			if c.kind == strictjson.String {
				m.text(place{&tree{kind: strictjson.Array, kids: []*tree{c}}, 0, ""})
			} else if len(c.kids) > 0 {
				m.text(place{c, m.rng.IntN(len(c.kids)), ""})
			}
		}
		t.kids = slices.Insert(t.kids, m.rng.IntN(len(t.kids)+1), c)
	}
}

func respell(m *mutator, t *tree) {
	shuffle(m, t)
	if t.kind == strictjson.Number && !strings.ContainsAny(t.text, ".eE") {
		t.text += pick(m, []string{".0", "e0", "E+0", ".000"})
	}
	for _, kid := range t.kids {
		respell(m, kid)
	}
}

func shuffle(m *mutator, t *tree) {
	m.rng.Shuffle(len(t.kids), func(i, j int) {
		t.kids[i], t.kids[j] = t.kids[j], t.kids[i]
		if t.kind == strictjson.Object {
			t.names[i], t.names[j] = t.names[j], t.names[i]
		}
	})
}

// text edits a string by a character or two.
func (m *mutator) text(p place) {
	t := p.node()
	if t.kind != strictjson.String || len(t.text) > 1000 {
		p.replace(scalar(quote(pick(m, texts))))
		return
	}
	inner := t.text[1 : len(t.text)-1]
	if strings.Contains(inner, `\`) {
		inner = ""
	}
	at := 0
	if inner != "" {
		at = m.rng.IntN(len(inner) + 1)
		for at < len(inner) && inner[at]&0xC0 == 0x80 {
			at++
		}
	}
	switch m.rng.IntN(4) {
	case 0:
		inner = inner[:at] + pick(m, characters) + inner[at:]
	case 1:
		inner += pick(m, characters)
	case 2:
		inner = inner[:at] + strings.ToValidUTF8(inner[min(at+1, len(inner)):], "")
	case 3:
		inner = pick(m, characters) + inner
	}
	p.replace(&tree{kind: strictjson.String, text: `"` + inner + `"`})
}

// length makes a string of a length at the edge of some bound.
func (m *mutator) length(p place) {
	lengths := edges
	if m.rng.IntN(8) == 0 {
		lengths = farEdges
	}
	n := pick(m, lengths) + m.rng.IntN(3) - 1
	prefix := pick(m, prefixes)
	unit := pick(m, []string{"a", "a", "0", "A", "\u00e9", "\u2028", " ", "\U0001F9F6", `\ud83e`, `\u0041`})
	n = max(0, n-len(prefix))
	p.replace(&tree{kind: strictjson.String, text: `"` + prefix + strings.Repeat(unit, n) + `"`})
}

// nest wraps a value, or puts a deep value in its place.
func (m *mutator) nest(p place) {
	t := p.node()
	depth := 1 + m.rng.IntN(3)
	if m.rng.IntN(3) == 0 {
		depth = m.rng.IntN(70)
	}
	for range depth {
		if m.rng.IntN(2) == 0 {
			t = &tree{kind: strictjson.Array, kids: []*tree{t}}
		} else {
			t = &tree{kind: strictjson.Object, names: []string{`"details"`}, kids: []*tree{t}}
		}
	}
	p.replace(t)
}

var retypes = []string{
	"null", "true", "false", "0", "1", "-1", `""`, `"0"`, `"x"`, "[]", "{}", "1.0", "0.5", `"null"`,
}

var numbers = []string{
	"0", "-0", "-0.0", "0e9", "0.0", "1", "1.0", "1e0", "10e-1", "1E+0", "0.1e1", "2", "100", "1e2", "-1", "-1.0",
	"0.5", "1.5", "-0.5", "1e-7", "-1e-7", "1.0000000000000001", "1.0000000000000002", "0.9999999999999999",
	"9007199254740991", "9007199254740991.0", "9007199254740990.5", "9007199254740991.4", "9007199254740992",
	"9007199254740993", "9.007199254740991e15", "9.007199254740992e15", "9223372036854775807",
	"9223372036854775808", "-9223372036854775809", "1e18", "1e19", "1e300", "1e400", "-1e400", "1e-400",
	"-1e-400", "123456789012345678901234567890", "2.5e-1", "12345678901234567.0",
}

var characters = []string{
	"a", "Z", "0", "9", "-", "_", ".", ":", "/", "?", "#", "[", "]", "@", "!", "$", "&", "'", "(", ")", "*", "+",
	",", ";", "=", "%", "%4", "%41", "%zz", "~", " ", `\n`, `\t`, `\r`, `\u0000`, `\u007f`, `\"`, `\\`, "^", "`", "{",
	"|", "}", "<", ">", "\u00e9", "\u00a0", "\ufeff", "\u200b", "\U0001F9F6", `\ud800`, `\udc00`, `\ud800\udc00`, "T", "P", "D", "S", "e",
}

var texts = []string{
	"", " ", "\u00a0", "\ufeff\u2028", "\u200b", "a", "A", "0.1", "agent", "human", "service",
	"urn:x:y", "urn:", "a:", "1a:b", "a+.-:b", "http://", "http://[::1]/", "http://[::1", "http://[v1.x]/", "http://a b/",
	"https://u:p@h.example:80/p;q?r#s", "https://h.example:8a/", "//h/p", "x:[", "x:#a#b", "mailto:a@b", "wss://x", "WSS://x", "wss:/x",
	"2031-05-04T07:00:00Z", "2031-05-04t07:00:00z", "2031-05-04 07:00:00Z", "2031-05-04T07:00:00", "2031-05-04T24:00:00Z",
	"2031-05-04T07:00:60Z", "2031-02-29T00:00:00Z", "2032-02-29T00:00:00.000000000000000000000001+23:59", "2031-05-04T07:00:00+24:00",
	"2031-05-04T07:00:00-00:00", "2031-05-04T07:00:00+00:00", "0000-01-01T00:00:00Z", "9999-12-31T23:59:59.9Z", "2031-05-04T07:00:00.Z", "2031-5-04T07:00:00Z",
	"1.0.0", "1.0", "01.0.0", "1.0.0-", "1.0.0-a+b", "1.0.0+b-a", "1.0.0-a..b", "99999999999999999999.0.0",
	"sha256:" + strings.Repeat("0", 64), "sha256:" + strings.Repeat("F", 64), "sha256:" + strings.Repeat("a", 63), "sha512:" + strings.Repeat("a", 64),
	"AA", "A", "AA=", "A+", "A/", "_-",
	"P1D", "P", "PT", "P1DT", "PT1H", "PT1M1H", "PT0.5S", "PT.5S", "P1DT1H1M1.25S", "P1Y", "PT1S\n",
	"text/plain", "text/", "/plain", "a/b/c", "a", "a!#$&^_.+-/b", "text/plain;q=1",
	"a.b", "a-b", "a..b", "a.b.", ".a", "A.b", "a_b.c", "ext.a.b.c", "ext.a.b", "ext.a.b.c.", "ext.-a.b.c", "ext.a_-.b-_.c9", "work.start", "work.started",
	"NOK", "nok", "NOKK", "TIMEOUT", "T", "T_9", "9T",
}

var prefixes = []string{"", "", "urn:x:", "https://x.example/", "ext.a.b.", "a.", "A", "sha256:", "P1DT", "1.0.0-", "a/"}

// edges are the length bounds of the schemas.
var edges = []int{0, 1, 2, 3, 16, 64, 71, 86, 128, 160, 200, 500, 512}

var farEdges = []int{2000, 4000, 4096, 8192, 10000, 50000, 100000}
