// Package conformance runs the three conformance bundles of a protocol checkout
// against this implementation: structural (conformance/manifest.json),
// cryptography (cryptography/manifest.json) and admission
// (admission/manifest.json), as PROTOCOL.md 22 defines them.
//
// The hazard it guards against is a green run that proves nothing: a runner that
// knows the answers, skips what it cannot read, or trusts files that were
// changed. Nothing about the vectors is known here. What is evaluated, how much
// of it there is and what must come out is read from the manifests; every file
// that a manifest pins is compared with its digest first; whatever cannot be
// read, does not have its declared form, or was not declared is a miss.
package conformance

import (
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// Names of the bundles.
const (
	Structural   = "structural"
	Cryptography = "cryptography"
	Admission    = "admission"
)

// Report is the outcome of one run.
type Report struct {
	Bundles []Bundle `json:"bundles"`
}

// Bundle is the outcome of one bundle: how many of its evaluations came out as
// the manifest expects, and everything that did not. A miss that is not about an
// evaluation (a changed artifact, a wrong digest) counts in neither number.
type Bundle struct {
	Name   string `json:"name"`
	Passed int    `json:"passed"`
	Total  int    `json:"total"`
	Misses []Miss `json:"misses,omitempty"`
}

// Miss is one disagreement. Vector names the evaluation, or the file.
type Miss struct {
	Vector string `json:"vector"`
	Detail string `json:"detail"`
}

// OK reports whether every bundle has evaluations and no miss.
func (r Report) OK() bool {
	return len(r.Bundles) > 0 && !slices.ContainsFunc(r.Bundles, func(b Bundle) bool { return !b.OK() })
}

// OK reports whether the bundle has evaluations and no miss.
func (b Bundle) OK() bool {
	return b.Total > 0 && b.Passed == b.Total && len(b.Misses) == 0
}

// WriteTo prints one line per bundle, then one line per miss.
func (r Report) WriteTo(w io.Writer) (int64, error) {
	var text strings.Builder
	for _, b := range r.Bundles {
		fmt.Fprintf(&text, "%s %d/%d\n", b.Name, b.Passed, b.Total)
	}
	for _, b := range r.Bundles {
		for _, m := range b.Misses {
			fmt.Fprintf(&text, "miss %s %s: %s\n", b.Name, m.Vector, m.Detail)
		}
	}
	n, err := io.WriteString(w, text.String())
	return int64(n), err
}

func (b *Bundle) miss(vector, format string, args ...any) {
	b.Misses = append(b.Misses, Miss{Vector: vector, Detail: fmt.Sprintf(format, args...)})
}

// judge counts one evaluation; it passed when check found nothing to say.
func (b *Bundle) judge(vector string, faults []string) {
	b.Total++
	if len(faults) == 0 {
		b.Passed++
		return
	}
	b.miss(vector, "%s", strings.Join(faults, "; "))
}

// Run evaluates the bundles of the protocol checkout in the directory root. The
// error is about the directory itself; a bundle that cannot be read is a bundle
// with a miss.
func Run(root string) (Report, error) {
	dir, err := os.OpenRoot(root)
	if err != nil {
		return Report{}, fmt.Errorf("conformance: open the protocol checkout: %w", err)
	}
	defer dir.Close()
	return RunFS(dir.FS()), nil
}

// RunFS is Run on a file system.
func RunFS(files fs.FS) Report {
	c := newCheckout(files)
	report := Report{Bundles: []Bundle{runStructural(c), runCryptography(c), runAdmission(c)}}
	for i := range report.Bundles {
		slices.SortStableFunc(report.Bundles[i].Misses, func(a, b Miss) int { return cmp.Compare(a.Vector, b.Vector) })
	}
	return report
}
