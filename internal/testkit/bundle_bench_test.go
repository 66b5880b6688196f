package testkit_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/bundle"
	"github.com/missionweave/server/internal/config"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/testkit"
)

// longBundle is a file with the bundle of a Group of so many Events. MW_BUNDLE_DIR
// keeps it for the next run, because making 100,000 Events takes minutes.
func longBundle(tb testing.TB, size int) string {
	tb.Helper()
	dir := os.Getenv("MW_BUNDLE_DIR")
	if dir == "" {
		dir = tb.TempDir()
	}
	name := filepath.Join(dir, "group-"+strconv.Itoa(size)+".mwbundle")
	if _, err := os.Stat(name); err == nil {
		return name
	}
	s := testkit.Start(tb, testkit.Policy(func(p *config.Policy) { noLimits(p); p.FreshnessPastSeconds = 900 }))
	m := s.NewMission()
	url := s.AuthorityURL + "/v1/commands:batch"
	for sent := 1; sent < size; {
		var body bytes.Buffer
		for n := 0; n < 400 && sent < size; n++ {
			body.Write(m.Sign(client.Command{Kind: "message.post", ConversationID: m.Conversation}, testkit.Message("message "+strconv.Itoa(sent))))
			body.WriteByte('\n')
			sent++
		}
		req, err := http.NewRequestWithContext(tb.Context(), http.MethodPost, url, &body)
		if err != nil {
			tb.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-ndjson")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			tb.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK {
			tb.Fatalf("batch: %d", res.StatusCode)
		}
	}
	f, err := os.CreateTemp(dir, "making-*")
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	if err := m.Owner.ExportGroup(tb.Context(), m.GroupID, f); err != nil {
		tb.Fatal(err)
	}
	if err := os.Rename(f.Name(), name); err != nil {
		tb.Fatal(err)
	}
	return name
}

// bare is a signature with what it covers and the key: all that a verifier must
// compute in any case.
type bare struct {
	key          ed25519.PublicKey
	message, sig []byte
}

func signaturesOf(tb testing.TB, raw []byte) []bare {
	tb.Helper()
	keys := map[string]ed25519.PublicKey{}
	var out []bare
	for _, l := range bytes.SplitAfter(raw, []byte("\n")) {
		if len(l) == 0 {
			continue
		}
		doc, err := strictjson.ParseDepth(l, 80)
		if err != nil {
			tb.Fatal(err)
		}
		v := doc.Root().Member("value")
		switch doc.Root().Member("kind").Str() {
		case "key":
			if keys[v.Member("keyId").Str()], err = base64.RawURLEncoding.DecodeString(v.Member("publicKey").Str()); err != nil {
				tb.Fatal(err)
			}
		case "command", "event":
			d := v.Member("document")
			message, err := d.AppendJCSWithout(nil, "signature")
			if err != nil {
				tb.Fatal(err)
			}
			sig, err := base64.RawURLEncoding.DecodeString(d.Member("signature").Member("value").Str())
			if err != nil {
				tb.Fatal(err)
			}
			out = append(out, bare{keys[d.Member("signature").Member("keyId").Str()], message, sig})
		}
	}
	return out
}

// checkBare verifies signatures on all cores.
func checkBare(tb testing.TB, list []bare) time.Duration {
	tb.Helper()
	began := time.Now()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(list)); i = next.Add(1) - 1 {
				if b := list[i]; !ed25519.Verify(b.key, b.message, b.sig) {
					tb.Error("a signature does not verify")
				}
			}
		})
	}
	wg.Wait()
	return time.Since(began)
}

// cpu is the processor time of the process so far: it does not depend on what else
// the machine does.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// peakHeap samples the heap while f runs.
func peakHeap(f func()) (peak uint64) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			peak = max(peak, m.HeapAlloc)
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	}()
	f()
	close(done)
	<-ended
	return peak
}

// BenchmarkVerifyBundle compares verifying a bundle with the bare signature checks
// in it, on the same cores in the same run. MW_BUNDLE_EVENTS sets its size.
func BenchmarkVerifyBundle(b *testing.B) {
	size := 100_000
	if n, err := strconv.Atoi(os.Getenv("MW_BUNDLE_EVENTS")); err == nil {
		size = n
	}
	name := longBundle(b, size)
	length := compareWithBare(b, name, size)
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	peak := peakHeap(func() {
		f, err := os.Open(name)
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
		if _, err := bundle.Verify(b.Context(), f, bundle.Options{}); err != nil {
			b.Fatal(err)
		}
	})
	b.ReportMetric(float64(length)/1e6, "MB")
	b.ReportMetric(float64(peak-min(peak, before.HeapAlloc))/1e6, "peak-MB")
}

// compareWithBare reports the two ratios and gives the length of the bundle.
func compareWithBare(b *testing.B, name string, size int) int {
	b.Helper()
	raw, err := os.ReadFile(name)
	if err != nil {
		b.Fatal(err)
	}
	list := signaturesOf(b, raw)
	var ratios, cpuRatios float64
	var report *bundle.Report
	for b.Loop() {
		start := cpu()
		alone := checkBare(b, list)
		cpuAlone := cpu() - start
		f, err := os.Open(name)
		if err != nil {
			b.Fatal(err)
		}
		began, start := time.Now(), cpu()
		report, err = bundle.Verify(b.Context(), f, bundle.Options{})
		took, cpuTook := time.Since(began), cpu()-start
		_ = f.Close()
		if err != nil || !report.OK() || report.Events != int64(size) {
			b.Fatalf("%v %+v", err, report)
		}
		ratios += took.Seconds() / alone.Seconds()
		cpuRatios += cpuTook.Seconds() / cpuAlone.Seconds()
		b.Logf("%d signatures: %v alone, %v verified; processor time %v and %v", len(list), alone.Round(time.Millisecond), took.Round(time.Millisecond),
			cpuAlone.Round(time.Millisecond), cpuTook.Round(time.Millisecond))
	}
	b.ReportMetric(ratios/float64(b.N), "ratio")
	b.ReportMetric(cpuRatios/float64(b.N), "cpu-ratio")
	return len(raw)
}
