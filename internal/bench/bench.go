package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"sort"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/missionweave/server/internal/authority"
	"github.com/missionweave/server/internal/protocol"
)

// Options say what to measure.
type Options struct {
	// DataDir holds the private database; "" makes a temporary one.
	DataDir string
	// Groups and Clients span the table.
	Groups, Clients []int
	// Duration is how long each cell runs.
	Duration time.Duration
	// Lanes is the Authority's, 0 for its default.
	Lanes int
	// NATS publishes meanwhile.
	NATS   bool
	Logger *slog.Logger

	subscribers int // Agents beside the Coordinator
}

// Cell is one measurement.
type Cell struct {
	Groups      int     `json:"groups"`
	Clients     int     `json:"clients"`
	PerSecond   float64 `json:"commandsPerSecond"`
	P50         float64 `json:"p50Ms"`
	P99         float64 `json:"p99Ms"`
	PerRound    float64 `json:"commandsPerTransaction"`
	Insert      float64 `json:"bareInsertPerSecond"`
	Limit       float64 `json:"verifySignInsertPerSecond"`
	OfInsert    float64 `json:"ofBareInsert"`
	OfLimit     float64 `json:"ofVerifySignInsert"`
	CPU         float64 `json:"cpuMicrosPerCommand"` // 0 when unknown
	LimitCPU    float64 `json:"verifySignInsertCpuMicros"`
	OfLimitCPU  float64 `json:"ofVerifySignInsertByCpu"`
	CommandSize int     `json:"commandBytes"`
	EventSize   int     `json:"eventBytes"`
}

// Report is all cells.
type Report struct {
	Cells []Cell `json:"cells"`
}

// WriteTo prints the table.
func (r *Report) WriteTo(w io.Writer) (int64, error) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "groups\tclients\tcommands/s\tp50 ms\tp99 ms\tper tx\tbare insert/s\tof it\tverify+sign+insert/s\tof it\tCPU µs\tits CPU µs\tof it\t")
	for _, c := range r.Cells {
		fmt.Fprintf(t, "%d\t%d\t%.0f\t%.1f\t%.1f\t%.1f\t%.0f\t%.0f %%\t%.0f\t%.0f %%\t%.0f\t%.0f\t%.0f %%\t\n",
			c.Groups, c.Clients, c.PerSecond, c.P50, c.P99, c.PerRound, c.Insert, 100*c.OfInsert, c.Limit, 100*c.OfLimit,
			c.CPU, c.LimitCPU, 100*c.OfLimitCPU)
	}
	return 0, t.Flush()
}

// ensureDir makes a temporary DataDir where none is given; call what it returns.
func (o *Options) ensureDir() (func(), error) {
	if o.DataDir != "" {
		return func() {}, nil
	}
	dir, err := os.MkdirTemp("", "missionweave-bench-")
	if err != nil {
		return nil, err
	}
	o.DataDir = dir
	return func() { _ = os.RemoveAll(dir) }, os.Chmod(dir, 0o711) //nolint:gosec // the database account passes through
}

// Run measures every cell. progress is called after each and may be nil.
func Run(ctx context.Context, options Options, progress func(Cell)) (*Report, error) {
	remove, err := options.ensureDir()
	if err != nil {
		return nil, err
	}
	defer remove()
	s, err := newStand(ctx, options)
	if err != nil {
		return nil, err
	}
	defer s.close()
	report := &Report{}
	for _, groups := range options.Groups {
		targets, err := s.missions(ctx, groups)
		if err != nil {
			return nil, err
		}
		for _, clients := range options.Clients {
			cell, err := s.measure(ctx, targets, clients, options.Duration)
			if err != nil {
				return nil, err
			}
			report.Cells = append(report.Cells, cell)
			if progress != nil {
				progress(cell)
			}
		}
	}
	return report, nil
}

// warmUp is run before each measurement and not counted. What is counted is cut
// into slices that take turns with the bare loops, so that a machine that is busy
// now and idle then is so for all three.
const (
	warmUp = 300 * time.Millisecond
	turns  = 4
)

// measure runs clients that each send one Command after another, and the two
// bare loops on the bytes that came of it.
func (s *stand) measure(ctx context.Context, targets []*target, clients int, d time.Duration) (Cell, error) {
	warm, err := s.load(ctx, targets, clients, warmUp, 20_000)
	if err != nil {
		return Cell{}, err
	}
	c := Cell{Groups: len(targets), Clients: clients}
	var all load
	var inserted, limited rate
	workers := min(s.lanes, clients)
	for range turns {
		got, err := s.load(ctx, targets, clients, d/turns, max(1000, int(warm.perSecond*2*d.Seconds()/turns)))
		if err != nil {
			return c, err
		}
		all.add(got)
		size := max(1, int(math.Round(got.perRound())))
		if err := s.bare(ctx, &inserted, got.pairs, size, workers, d/turns/2, nil); err != nil {
			return c, err
		}
		if err := s.bare(ctx, &limited, got.pairs, size, workers, d/turns/2, s.verifyAndSign); err != nil {
			return c, err
		}
		warm = got
	}
	sort.Slice(all.latencies, func(i, j int) bool { return all.latencies[i] < all.latencies[j] })
	c.PerSecond, c.P50, c.P99, c.PerRound = all.perSecond, all.quantile(0.5), all.quantile(0.99), all.perRound()
	c.CommandSize, c.EventSize = len(all.pairs[0].command), len(all.pairs[0].event)
	c.Insert, c.Limit = inserted.perSecond(), limited.perSecond()
	c.OfInsert, c.OfLimit = c.PerSecond/c.Insert, c.PerSecond/c.Limit
	if all.cpu > 0 && limited.cpu > 0 {
		c.CPU, c.LimitCPU = all.perUnit(), limited.perUnit()
		c.OfLimitCPU = c.LimitCPU / c.CPU
	}
	return c, nil
}

// rate is a count over a time and the processor time it took.
type rate struct {
	n         int64
	took, cpu time.Duration
}

func (r *rate) perUnit() float64 { return float64(r.cpu.Microseconds()) / float64(max(1, r.n)) }

func (r *rate) perSecond() float64 { return float64(r.n) / r.took.Seconds() }

// pair is a Command with the Event and the receipt it got.
type pair struct{ command, event, receipt []byte }

// load is what a run of clients gave.
type load struct {
	rate
	perSecond        float64
	accepted, rounds int64
	latencies        []time.Duration
	pairs            []pair
}

func (l *load) perRound() float64 { return float64(l.accepted) / float64(max(1, l.rounds)) }

func (l *load) add(o *load) {
	l.n, l.took, l.cpu = l.n+o.n, l.took+o.took, l.cpu+o.cpu
	l.accepted, l.rounds = l.accepted+o.accepted, l.rounds+o.rounds
	l.latencies, l.pairs = append(l.latencies, o.latencies...), append(l.pairs, o.pairs...)
	l.perSecond = l.rate.perSecond()
}

func (l *load) quantile(q float64) float64 {
	if len(l.latencies) == 0 {
		return 0
	}
	return float64(l.latencies[int(q*float64(len(l.latencies)-1))]) / float64(time.Millisecond)
}

// load signs most Commands and has clients send them for d.
func (s *stand) load(ctx context.Context, targets []*target, clients int, d time.Duration, most int) (*load, error) {
	most = min(most, 200_000)
	bodies := make([][]byte, most)
	if err := s.everyCore(most, func(i int) (err error) {
		bodies[i], err = targets[i%len(targets)].command(i)
		return err
	}); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*d+time.Minute)
	defer cancel()
	var next atomic.Int64
	var mu sync.Mutex
	var failed error
	out := &load{}
	before := s.service.Stats()
	used := s.cpu(ctx)
	began := time.Now()
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			var took []time.Duration
			var pairs []pair
			for time.Since(began) < d {
				i := int(next.Add(1)) - 1
				if i >= most {
					break
				}
				at := time.Now()
				res, err := s.service.Submit(ctx, authority.Submission{Body: bodies[i], Peer: "bench"})
				if err != nil {
					mu.Lock()
					failed = refusal(err)
					mu.Unlock()
					break
				}
				took = append(took, time.Since(at))
				if len(pairs) < 4000/clients {
					pairs = append(pairs, pair{bodies[i], res.Events[0], res.Receipt})
				}
			}
			mu.Lock()
			out.latencies, out.pairs = append(out.latencies, took...), append(out.pairs, pairs...)
			mu.Unlock()
		})
	}
	wg.Wait()
	elapsed := time.Since(began)
	if failed != nil {
		return nil, failed
	}
	after := s.service.Stats()
	out.n, out.took = int64(len(out.latencies)), elapsed
	out.cpu = s.cpu(ctx).since(used)
	out.accepted, out.rounds = after.Accepted-before.Accepted, after.Rounds-before.Rounds
	out.perSecond = out.rate.perSecond()
	return out, nil
}

func refusal(err *protocol.Error) error { return fmt.Errorf("bench: a Command was refused: %w", err) }

// everyCore runs n jobs on all cores.
func (s *stand) everyCore(n int, job func(int) error) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, s.cores)
	for w := range s.cores {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n || errs[w] != nil {
					return
				}
				errs[w] = job(i)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// bare inserts the pairs in transactions of size rows for d and adds to the rate;
// work is done for each pair before.
func (s *stand) bare(ctx context.Context, r *rate, pairs []pair, size, workers int, d time.Duration, work func(pair) error) error {
	if _, err := s.store.Reader().Exec(ctx, `DROP TABLE IF EXISTS bench_rows; CREATE TABLE bench_rows (worker int, sequence bigint, event bytea, command bytea, receipt bytea, PRIMARY KEY (worker, sequence));
		ALTER TABLE bench_rows ALTER COLUMN event SET STORAGE EXTERNAL, ALTER COLUMN command SET STORAGE EXTERNAL, ALTER COLUMN receipt SET STORAGE EXTERNAL;
		ALTER TABLE bench_rows SET (toast_tuple_target = 8160)`); err != nil {
		return err
	}
	var total atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, workers)
	used := s.cpu(ctx)
	began := time.Now()
	for w := range workers {
		wg.Go(func() {
			sequence := int64(0)
			for i := w * 97; time.Since(began) < d; i += size {
				sequences, events, commands, receipts := make([]int64, size), make([][]byte, size), make([][]byte, size), make([][]byte, size)
				for k := range size {
					p := pairs[(i+k)%len(pairs)]
					if work != nil {
						if errs[w] = work(p); errs[w] != nil {
							return
						}
					}
					sequence++
					sequences[k], events[k], commands[k], receipts[k] = sequence, p.event, p.command, p.receipt
				}
				if _, errs[w] = s.store.Reader().Exec(ctx, `INSERT INTO bench_rows SELECT $1, * FROM unnest($2::bigint[], $3::bytea[], $4::bytea[], $5::bytea[])`,
					w, sequences, events, commands, receipts); errs[w] != nil {
					return
				}
				total.Add(int64(size))
			}
		})
	}
	wg.Wait()
	r.n, r.took = r.n+total.Load(), r.took+time.Since(began)
	r.cpu += s.cpu(ctx).since(used)
	return errors.Join(errs...)
}
