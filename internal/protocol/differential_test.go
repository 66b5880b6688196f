package protocol_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// subject is a valid document to be mutated.
type subject struct {
	kind protocol.DocumentKind
	doc  *tree
}

// subjects are our own valid documents and those of the checkout.
func subjects(t testing.TB, root string) []subject {
	t.Helper()
	var out []subject
	for _, v := range ownVectors(t) {
		if v.valid {
			out = append(out, subject{v.kind, v.doc})
		}
	}
	for _, v := range readVectors(t, root) {
		kind, ok := protocol.KindOf(strings.TrimSuffix(filepath.Base(v.Schema), ".schema.json"))
		if !ok || !v.Valid {
			continue
		}
		b, err := os.ReadFile(filepath.Join(root, v.Instance))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, subject{kind, parseTree(t, b)})
	}
	return out
}

// Whatever is done to a valid document, our verdict is that of a Draft 2020-12
// interpreter on the normative schemas. MW_LONG=1 makes a million mutations;
// MW_SEED repeats or varies a run.
func TestStructureAgreesWithSchemasUnderMutation(t *testing.T) {
	root := sharedRoot(t)
	judge := newOracle(t, root)
	docs := subjects(t, root)
	corpus := make([]*tree, len(docs))
	for i := range docs {
		corpus[i] = docs[i].doc
	}
	byName := indexNames(corpus)
	total := 20_000
	if raceEnabled {
		total = 2_000
	}
	if os.Getenv("MW_LONG") == "1" {
		total = 1_000_000
	}
	seed := uint64(0x5EED)
	if s := os.Getenv("MW_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seed = n
	}
	kinds := protocol.DocumentKinds()
	var valid, invalid, unparsed, disagreements atomic.Int64
	var next atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for {
				i := next.Add(1) - 1
				if i >= int64(total) || disagreements.Load() >= 20 {
					return
				}
				// Each mutation has its own generator, so that any one can be
				// repeated alone.
				m := newMutator(seed, uint64(i), judge, corpus, byName)
				subject := docs[m.rng.IntN(len(docs))]
				kind := subject.kind
				if m.rng.IntN(50) == 0 {
					kind = pick(m, kinds)
				}
				b := m.mutate(subject.doc.clone()).append(nil)
				doc, err := strictjson.Parse(b)
				if err != nil {
					unparsed.Add(1)
					continue
				}
				fault := protocol.Validate(kind, doc.Root())
				want, why := judge.accepts(kind, doc.Root())
				if want {
					valid.Add(1)
				} else {
					invalid.Add(1)
				}
				if (fault == nil) != want {
					disagreements.Add(1)
					t.Errorf("seed %d mutation %d, kind %s: ours %v, schema %v\n%.4000s", seed, i, kind, fault, why, b)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d mutations: %d valid, %d invalid, %d not strict JSON", total, valid.Load(), invalid.Load(), unparsed.Load())
	if unparsed.Load()*5 > int64(total) || valid.Load()*20 < int64(total) {
		t.Error("the mutations miss their aim")
	}
}

func TestOwnVectorsAgreeWithSchemas(t *testing.T) {
	judge := newOracle(t, sharedRoot(t))
	for _, v := range ownVectors(t) {
		doc, err := strictjson.Parse(v.doc.append(nil))
		if err != nil {
			t.Fatal(err)
		}
		if got, why := judge.accepts(v.kind, doc.Root()); got != v.valid {
			t.Errorf("%s/%s: schema says %v: %v", v.kind, v.name, got, why)
		}
	}
}

// FuzzStructure is the same comparison under the coverage-guided fuzzer.
func FuzzStructure(f *testing.F) {
	root := sharedRoot(f)
	judge := newOracle(f, root)
	kinds := protocol.DocumentKinds()
	for i, kind := range kinds {
		for _, v := range ownVectors(f) {
			if v.kind == kind {
				f.Add(uint8(i), v.doc.append(nil))
			}
		}
	}
	f.Fuzz(func(t *testing.T, i uint8, b []byte) {
		kind := kinds[int(i)%len(kinds)]
		doc, err := strictjson.Parse(b)
		if err != nil || hugeExponent(doc.Root()) {
			return
		}
		fault := protocol.Validate(kind, doc.Root())
		if want, why := judge.accepts(kind, doc.Root()); (fault == nil) != want {
			t.Errorf("kind %s: ours %v, schema %v\n%s", kind, fault, why, b)
		}
	})
}

// hugeExponent finds numbers that the interpreter would expand to gigabytes.
func hugeExponent(v strictjson.Value) bool {
	switch v.Kind() {
	case strictjson.Number:
		if _, exponent, ok := strings.Cut(strings.ToLower(v.NumberText()), "e"); ok {
			n, err := json.Number(strings.TrimPrefix(exponent, "+")).Int64()
			return err != nil || n > 5000 || n < -5000
		}
	case strictjson.Array:
		for _, item := range v.Items() {
			if hugeExponent(item) {
				return true
			}
		}
	case strictjson.Object:
		for _, member := range v.Members() {
			if hugeExponent(member) {
				return true
			}
		}
	}
	return false
}
