package authzhttp_test

import (
	"context"
	"crypto/ed25519"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/authority"
	"github.com/missionweave/server/internal/authz"
	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/sessions"
	"github.com/missionweave/server/internal/trust"
)

// readOfAnIssue is the database read that an issue cannot do without: session and
// clock, the Group's head, and what is new in its log, in one round trip.
func readOfAnIssue(ctx context.Context, store *events.Store, tree int64, groupID string, head int64, agentID string) error {
	var b pgx.Batch
	var page []events.StoredEvent
	b.Queue(`SELECT clock_timestamp(), coalesce((SELECT revision FROM registry_head), 0), s.session_epoch, s.expires_at
		FROM agent_sessions s WHERE s.agent_id = $1`, agentID)
	b.Queue(`SELECT head_sequence FROM groups WHERE group_id = $1`, groupID)
	events.QueueTail(&b, tree, groupID, head, &page)
	return store.Reader().SendBatch(ctx, &b).Close()
}

// BenchmarkIssue holds the issue of a Capability Token against what it is made of:
// a bare signature and its one read. The ratio is what counts; both halves are
// measured in turn in the same run, so the machine's load cancels out.
func BenchmarkIssue(b *testing.B) {
	s := newBench(b)
	message := make([]byte, 1200) // the signing input of a token
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		b.Fatal(err)
	}
	var issue, base []time.Duration
	for b.Loop() {
		at := time.Now()
		if _, perr := s.service.IssueCapability(b.Context(), s.holder, s.request); perr != nil {
			b.Fatal(perr)
		}
		issue = append(issue, time.Since(at))
		at = time.Now()
		ed25519.Sign(private, message)
		if err := readOfAnIssue(b.Context(), s.store, s.tree, s.request.GroupID, s.head, s.holder.Principal.ID); err != nil {
			b.Fatal(err)
		}
		base = append(base, time.Since(at))
	}
	b.ReportMetric(float64(median(issue).Microseconds()), "issue-µs")
	b.ReportMetric(float64(median(base).Microseconds()), "sign+read-µs")
	b.ReportMetric(float64(median(issue))/float64(median(base)), "ratio")
}

// BenchmarkCheck is the online check of a token.
func BenchmarkCheck(b *testing.B) {
	s := newBench(b)
	g, perr := s.service.IssueCapability(b.Context(), s.holder, s.request)
	if perr != nil {
		b.Fatal(perr)
	}
	for b.Loop() {
		if _, perr := s.service.CheckCapability(b.Context(), nil, g.Token); perr != nil {
			b.Fatal(perr)
		}
	}
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

type bench struct {
	service *authz.Service
	store   *events.Store
	holder  sessions.Identity
	request authz.CapabilityRequest
	tree    int64
	head    int64
}

// newBench makes a Service of its own beside a running stack.
func newBench(b testing.TB) *bench {
	b.Helper()
	return newService(b, nil)
}

// newService is newBench with manifests.
func newService(b testing.TB, manifests authz.Manifests) *bench {
	b.Helper()
	s := newStand(b, nil)
	s.start(3600)
	directory := registry.NewDirectory(s.Pool, registry.DirectoryOptions{})
	store, err := events.Open(b.Context(), s.Settings.DatabaseURL, events.Options{OrganizationID: s.organization()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(store.Close)
	signer := s.As("authorization").Identity()
	service := authz.New(authz.Config{
		Store: store, Directory: directory,
		Keys: authz.NewKeyring(registry.RoleAuthorization, trust.Signer{
			KeyID: signer.KeyID, Principal: signer.Principal, Private: signer.Key,
		}, nil),
		Organization: authority.DefaultPolicy().Organization, MaxLife: 900 * time.Second, Mint: client.NewID, Now: time.Now,
		Manifests: manifests,
	})
	out := &bench{
		service: service, store: store,
		holder: sessions.Identity{
			Principal: s.worker.Principal(), KeyID: s.worker.Identity().KeyID,
			Kind: sessions.SessionToken, SessionEpoch: s.k.Epoch,
		},
		request: authz.CapabilityRequest{
			GroupID: s.m.GroupID, WorkItemID: s.item, OwnershipEpoch: 1, ExecutionLeaseID: s.lease,
			Operations: []string{"write"}, Resources: []string{"urn:repo:app"},
		},
	}
	if err := s.Pool.QueryRow(b.Context(), `SELECT tree_id, head_sequence FROM groups WHERE group_id = $1`, s.m.GroupID).Scan(&out.tree, &out.head); err != nil {
		b.Fatal(err)
	}
	return out
}
