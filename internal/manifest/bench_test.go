package manifest

import (
	"fmt"
	"testing"
)

func BenchmarkDecide(b *testing.B) {
	m := world(b)
	records := RecordMap{}
	r := &Request{
		Mode: Interactive, Action: "send_email", Parameters: object(`{"to":"a@example.org","subject":"report","body":"text"}`),
		Records: records, Actor: "a", Session: "s",
	}
	for i := range 20 {
		x := &Record{ID: fmt.Sprintf("urn:uuid:00000000-0000-7000-8000-%012d", i), Source: "user", Trust: "trusted", Parents: []string{}}
		if i%2 == 1 {
			x.Source, x.Trust, x.Parents = "memory", "derived", []string{r.Chain[i-1]}
		}
		records[x.ID] = x
		r.Chain = append(r.Chain, x.ID)
	}
	if d := m.Decide(r); d.Verdict != ALLOW {
		b.Fatal(d.Reason)
	}
	b.ReportAllocs()
	for b.Loop() {
		m.Decide(r)
	}
}
