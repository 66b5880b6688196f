package scenario

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/missionweave/server/internal/protocol/lexical"
)

// chooser takes every choice of a play from its seed. A choice depends on the
// seed, on what is chosen and on how often that was chosen before, and on nothing
// else: a scene that breaks off changes no choice of another one.
//
// Determined are: what the Missions are about, which of them has the greater
// share, how many WorkItems queue up and in which order they are offered, what
// is asked, missed, spent and released, in which direction leaks are looked for
// first, and of every id that the scenes mint the random half. The other half of
// an id is the clock's, so that a seed can be played again on the same server.
// Not determined are: keys and session ids, which must not be guessed, ids that
// Workers mint on their own and those of the Messages to them, times, and how the
// server interleaves what Workers do at the same time.
type chooser struct {
	seed uint64

	mu     sync.Mutex
	asked  map[string]uint64
	course []string
}

func newChooser(seed uint64) *chooser { return &chooser{seed: seed, asked: map[string]uint64{}} }

// random is the source of one choice.
func (c *chooser) random(what string) *rand.Rand {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := fnv.New64a()
	_, _ = h.Write([]byte(what))
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], c.asked[what])
	_, _ = h.Write(n[:])
	c.asked[what]++
	return rand.New(rand.NewPCG(c.seed, h.Sum64())) //nolint:gosec // a course to repeat, not a secret
}

func (c *chooser) note(what string, chosen any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.course = append(c.course, fmt.Sprintf("%s: %v", what, chosen))
}

// taken are the choices so far, in the order in which they were made.
func (c *chooser) taken() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.course)
}

// id mints an id for something named.
func (c *chooser) id(what string) string {
	r := c.random("id of " + what)
	var b [10]byte
	binary.BigEndian.PutUint64(b[:], r.Uint64())
	binary.BigEndian.PutUint16(b[8:], uint16(r.Uint32())) //nolint:gosec // 16 bits are wanted
	id := lexical.UUIDv7(time.Now(), b)
	c.note("id of "+what, short(id))
	return id
}

// number is between two bounds, both possible.
func (c *chooser) number(what string, least, most int64) int64 {
	n := least + c.random(what).Int64N(most-least+1)
	c.note(what, n)
	return n
}

// one is one of several texts.
func (c *chooser) one(what string, of ...string) string {
	chosen := of[c.random(what).IntN(len(of))]
	c.note(what, chosen)
	return chosen
}

// order is a permutation of 0..n-1.
func (c *chooser) order(what string, n int) []int {
	order := c.random(what).Perm(n)
	c.note(what, order)
	return order
}

// short is the part of an id that tells it from others.
func short(id string) string { return id[max(0, len(id)-8):] }
