package policy

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/manifest"
	"github.com/missionweave/server/internal/policylog"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/views"
)

// Recorded is an entry of the Policy Log as its readers see it.
type Recorded struct {
	Entry           int64          `json:"entry"`
	DecisionID      string         `json:"decisionId"`
	DecidedAt       string         `json:"decidedAt"`
	Category        string         `json:"category"`
	Outcome         string         `json:"outcome"`
	Code            protocol.Code  `json:"code,omitempty"`
	Reason          string         `json:"reason,omitempty"`
	RuleIDs         []string       `json:"ruleIds"`
	ManifestVersion string         `json:"manifestVersion,omitempty"`
	Principal       protocol.Actor `json:"principal"`
	GroupID         string         `json:"groupId,omitempty"`
	WorkItemID      string         `json:"workItemId,omitempty"`
	SubjectID       string         `json:"subjectId,omitempty"`
	// Input is what was decided on, whole; Result what was answered.
	Input  strictjson.Raw `json:"input"`
	Result strictjson.Raw `json:"result,omitempty"`
}

func recordedOf(e *policylog.Entry) Recorded {
	return Recorded{
		Entry: e.Entry, DecisionID: e.ID, DecidedAt: e.At.Format(time.RFC3339Nano), Category: e.Category, Outcome: e.Outcome,
		Code: e.Code, Reason: e.Reason, RuleIDs: orEmpty(e.RuleIDs), ManifestVersion: e.ManifestVersion, Principal: e.Principal,
		GroupID: e.GroupID, WorkItemID: e.WorkItemID, SubjectID: e.SubjectID, Input: e.Input, Result: e.Result,
	}
}

// mayReadLog narrows a filter to what a reader may know of the Policy Log. All of a
// Group's entries are for its MissionOwner, its Coordinator, whoever answers ASKs
// there, and the policy and archival services; another member reads what it asked
// for itself. What happened before a reader's first visible Event stays hidden.
// Entries about no Group are for those services.
//
// Errors: GROUP_NOT_FOUND and MEMBERSHIP_REQUIRED as for the Group, AUTH_FORBIDDEN.
func (s *Service) mayReadLog(ctx context.Context, who protocol.Actor, f *policylog.Filter) error {
	if who.Type == protocol.ActorService || f.GroupID == "" {
		trusted := false
		if who.Type == protocol.ActorService {
			ok, err := s.keeper(ctx, who)
			if err != nil {
				return err
			}
			trusted = ok || s.cfg.Views.MayReadGroups(who)
		}
		switch {
		case f.GroupID == "" && !trusted:
			return forbidden("policy")
		case f.GroupID == "":
			f.NoGroup = true
			return nil
		case !trusted:
			return protocol.NewError(protocol.CodeGroupNotFound, "")
		}
		_, err := s.enter(ctx, who, f.GroupID)
		return err
	}
	access, err := s.enter(ctx, who, f.GroupID)
	if err != nil {
		return err
	}
	all := access.Manages
	if !all {
		now, err := s.now(ctx, s.cfg.Pool)
		if err != nil {
			return err
		}
		if all, err = s.holds(ctx, who, f.GroupID, groups.ScopeApprovalExecution, now); err != nil {
			return err
		}
	}
	if !all {
		f.Principal = who
	}
	f.Since, err = s.visibleSince(ctx, access)
	return err
}

// visibleSince is the time of the first Event that a reader may see; the zero time
// for one who sees everything.
func (s *Service) visibleSince(ctx context.Context, access *views.Access) (since time.Time, err error) {
	if access.From <= 1 {
		return time.Time{}, nil
	}
	err = s.cfg.Pool.QueryRow(ctx, `SELECT occurred_at FROM event_log WHERE tree_id = $1 AND group_id = $2 AND sequence = $3`,
		access.TreeID, access.GroupID, access.From).Scan(&since)
	if errors.Is(err, pgx.ErrNoRows) {
		return s.now(ctx, s.cfg.Pool) // it is still to come
	}
	return since, err
}

// DecisionFilter selects entries of the Policy Log; empty members select all.
type DecisionFilter struct{ GroupID, Category, SubjectID string }

// Decisions is a page of the Policy Log in its order, as far as the reader may know
// it; after is the place of the last entry seen.
func (s *Service) Decisions(ctx context.Context, who protocol.Actor, f DecisionFilter, after int64, limit int) (items []Recorded, next int64, err error) {
	filter := policylog.Filter{GroupID: f.GroupID, Category: f.Category, SubjectID: f.SubjectID, After: after, Limit: limit}
	if err := s.mayReadLog(ctx, who, &filter); err != nil {
		return nil, 0, err
	}
	page, err := policylog.Read(ctx, s.cfg.Pool, filter)
	if err != nil {
		return nil, 0, err
	}
	for i := range page {
		items = append(items, recordedOf(&page[i]))
	}
	if len(page) == limit { // a further page may be empty
		next = page[limit-1].Entry
	}
	return items, next, nil
}

// MaxSimulated bounds the decisions of one simulation.
const MaxSimulated = 10_000

// Simulated is a page of a simulation. The places of its differences count within
// the page.
type Simulated struct {
	manifest.Simulation
	// Next continues where this page ended; "" when everything was decided again.
	Next string `json:"next,omitempty"`
}

// Simulate decides recorded actions of a Group again under a version: up to limit,
// from after on. The caller is a policy service, or a human with approval.execution
// in the Group.
func (s *Service) Simulate(ctx context.Context, who protocol.Actor, version, groupID string, after int64, limit int) (*Simulated, error) {
	if err := s.maySimulate(ctx, who, groupID); err != nil {
		return nil, err
	}
	m, err := s.load(ctx, s.cfg.Pool, version)
	if errors.Is(err, errNoVersion) {
		return nil, httpkit.NotFound()
	}
	if err != nil {
		return nil, err
	}
	out := &Simulated{}
	var trace []manifest.Entry
	for len(trace) < limit {
		size := min(policylog.MaxRead, limit-len(trace))
		page, err := policylog.Read(ctx, s.cfg.Pool, policylog.Filter{GroupID: groupID, Category: policylog.Action, After: after, Limit: size})
		if err != nil {
			return nil, err
		}
		for i := range page {
			after = page[i].Entry
			if page[i].Outcome == outcomeReported {
				continue // what was executed, not what was decided
			}
			var e manifest.Entry
			if err := strictjson.Raw(page[i].Input).Decode(&e); err != nil {
				return nil, fmt.Errorf("policy: entry %d of the Policy Log: %w", after, err)
			}
			trace = append(trace, e)
		}
		out.Next = ""
		if len(page) < size {
			break
		}
		out.Next = httpkit.Cursor(strconv.FormatInt(after, 10))
	}
	out.Simulation = m.Simulate(trace)
	return out, nil
}

func (s *Service) maySimulate(ctx context.Context, who protocol.Actor, groupID string) error {
	if who.Type == protocol.ActorHuman {
		now, err := s.now(ctx, s.cfg.Pool)
		if err != nil {
			return err
		}
		return s.approver(ctx, who, groupID, now)
	}
	if _, err := s.enter(ctx, who, groupID); err != nil {
		return err
	}
	ok, err := s.keeper(ctx, who)
	if err == nil && !ok {
		err = forbidden("policy")
	}
	return err
}
