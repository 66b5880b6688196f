package conformance

import (
	"fmt"
	"slices"
	"strings"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

const structuralManifest = "conformance/manifest.json"

type structuralVector struct {
	Name     string `json:"name"`
	Schema   string `json:"schema"`
	Instance string `json:"instance"`
	Valid    bool   `json:"valid"`
}

// runStructural checks that each document of the manifest has, or has not, the
// structure of its schema. Its manifest pins no digests.
func runStructural(c *checkout) Bundle {
	b := Bundle{Name: Structural}
	var vectors []structuralVector
	if _, err := c.decode(structuralManifest, formStructural, &vectors); err != nil {
		b.miss(structuralManifest, "%v", err)
		return b
	}
	for _, v := range vectors {
		b.judge(fmt.Sprintf("%q (%s)", v.Name, v.Instance), structuralFaults(c, v))
	}
	return b
}

func structuralFaults(c *checkout, v structuralVector) []string {
	kind, ok := kindOfSchema(v.Schema)
	if !ok {
		return []string{"no document kind has the schema " + v.Schema}
	}
	content, err := c.read(v.Instance)
	if err != nil {
		return []string{err.Error()}
	}
	doc, err := strictjson.Parse(content)
	if err != nil {
		return []string{err.Error()}
	}
	fault := protocol.Validate(kind, doc.Root())
	switch {
	case v.Valid && fault != nil:
		return []string{fmt.Sprintf("is refused at %q (%s), want accepted", fault.Path, fault.Keyword)}
	case !v.Valid && fault == nil:
		return []string{"is accepted, want refused"}
	}
	return nil
}

// kindOfSchema maps schemas/<kind>.schema.json to its kind.
func kindOfSchema(path string) (protocol.DocumentKind, bool) {
	name, ok := strings.CutPrefix(path, "schemas/")
	if !ok {
		return "", false
	}
	name, ok = strings.CutSuffix(name, ".schema.json")
	kind := protocol.DocumentKind(name)
	return kind, ok && slices.Contains(protocol.DocumentKinds(), kind)
}
