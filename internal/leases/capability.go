package leases

import (
	"strings"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
)

// Satisfies decides the capability match of COMMANDS.md 3.5: equal ids, the
// same major number (and, below 1.0.0, the same minor one), and a held version
// that is not lower than the required one.
func Satisfies(held, required protocol.CapabilityRef) bool {
	return held.ID == required.ID && line(held.Version) == line(required.Version) &&
		AtLeast(held.Version, required.Version)
}

// AtLeast reports held ≥ minimum by semantic version precedence; an unreadable
// version satisfies nothing.
func AtLeast(held, minimum string) bool {
	h, errH := lexical.ParseSemver(held)
	m, errM := lexical.ParseSemver(minimum)
	return errH == nil && errM == nil && h.Compare(m) >= 0
}

// line is the part of a version within which versions are compatible. Version
// numbers have no leading zeros, so text comparison is exact at any length.
func line(version string) string {
	major, rest, _ := strings.Cut(version, ".")
	if major != "0" {
		return major
	}
	minor, _, _ := strings.Cut(rest, ".")
	return major + "." + minor
}

// Pins picks, for each required capability, the highest version the card holds
// that satisfies it. missing lists the required ones that no version satisfies.
func Pins(card []protocol.Capability, required []protocol.CapabilityRef) (pins, missing []protocol.CapabilityRef) {
	for _, r := range required {
		best := ""
		for _, c := range card {
			held := protocol.CapabilityRef{ID: c.ID, Version: c.Version}
			if Satisfies(held, r) && (best == "" || AtLeast(c.Version, best)) {
				best = c.Version
			}
		}
		if best == "" {
			missing = append(missing, r)
			continue
		}
		pins = append(pins, protocol.CapabilityRef{ID: r.ID, Version: best})
	}
	return pins, missing
}

// Match reports whether the card satisfies every required capability.
func Match(card []protocol.Capability, required []protocol.CapabilityRef) bool {
	_, missing := Pins(card, required)
	return len(missing) == 0
}
