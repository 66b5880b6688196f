package scenario

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func course(seed uint64) []string {
	c := newChooser(seed)
	c.id("WorkItem a")
	c.id("WorkItem a")
	c.number("n", 0, 1<<40)
	c.order("o", 12)
	c.one("one", "a", "b", "c")
	return c.taken()
}

func TestChoicesAreTheSeedsAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.Uint64().Draw(t, "a"), rapid.Uint64().Draw(t, "b")
		if !slices.Equal(course(a), course(a)) {
			t.Fatal("one seed chose twice in two ways")
		}
		if a != b && slices.Equal(course(a), course(b)) {
			t.Fatalf("seeds %d and %d choose alike", a, b)
		}
	})
}

func TestAChoiceDoesNotDependOnOthers(t *testing.T) {
	alone, late := newChooser(3), newChooser(3)
	late.number("something else", 0, 100)
	late.id("something else")
	if x, y := alone.number("n", 0, 1<<40), late.number("n", 0, 1<<40); x != y {
		t.Errorf("%d alone, %d after others", x, y)
	}
}

func TestAnIDIsFreshAndItsSecondHalfTheSeeds(t *testing.T) {
	c, d := newChooser(5), newChooser(5)
	a, b := c.id("x"), c.id("x")
	if a == b || a[len(a)-12:] == b[len(b)-12:] {
		t.Errorf("twice %s", a)
	}
	if again := d.id("x"); again[len(again)-12:] != a[len(a)-12:] {
		t.Errorf("%s and %s have one seed", a, again)
	}
}
