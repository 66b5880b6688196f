// Package delivery reads a Group's Events for one reader: from a position,
// through the log as it stands, and on as it grows. WebSocket subscriptions and
// Server-Sent Events are both made of it.
//
// Three hazards. A gap between replay and live: there is no such seam here,
// because one loop reads the log from a position and sleeps when it is at the
// end. A reader whose Membership changed: the loop stops at every Event that
// may change what the reader sees, and enters the Group again before it reads
// on. A slow reader: a Feed holds a position and no Events, so one that is not
// asked for more costs nothing and loses nothing.
package delivery

import (
	"context"
	"errors"
	"time"

	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/views"
)

// Log is a Group log that says when it has grown; *events.Hub is one.
type Log interface {
	Watch(groupID string) (wake <-chan struct{}, cancel func())
	Read(ctx context.Context, groupID string, after int64, limit int) ([]events.StoredEvent, error)
	// AccessUnchanged tells that nobody's access has changed after a sequence, and
	// Unredacted that nothing from a sequence on was redacted. False is always safe.
	AccessUnchanged(groupID string, after int64) bool
	Unredacted(groupID string, from int64) bool
}

// Source is what Feeds read from.
type Source struct {
	Log   Log
	Views *views.Views
}

// pageSize is how many Events are judged at once. It bounds what a Feed hands
// over in one Page.
const pageSize = 128

// retryPause is how long a Feed waits after the database did not answer, and
// answerWithin how long the database may take: a connection that nobody answers
// on must not hold a Feed for ever.
const (
	retryPause   = 500 * time.Millisecond
	answerWithin = 5 * time.Second
)

// Request says what a Feed reads.
type Request struct {
	Reader  protocol.Actor
	GroupID string
	// After is the position: the Feed begins with the Event after it, or with the
	// first one that the reader may see.
	After int64
	// Attention narrows live Events, never replayed ones; nil wants everything.
	Attention *protocol.Attention
	// OwnAction tells whether the reader issued the Command of an Action ID; nil
	// knows only what Events say.
	OwnAction func(actionID string) bool
}

// Feed is one reader's way through one Group. Its methods are called from one
// goroutine.
type Feed struct {
	source  Source
	request Request
	access  *views.Access
	wake    <-chan struct{}
	cancel  func()
	// stirred tells that a wake-up was taken and nothing read since.
	stirred bool
	// position is the last sequence that was judged; replay ends at liveAfter.
	position, liveAfter int64
	stale               bool
	ended               bool
}

// Page is the next part of a Feed.
type Page struct {
	// Events are to be handed over, in order.
	Events []events.StoredEvent
	// Through is the last sequence judged: whatever the reader may and wants to
	// see up to there has been in this Page or an earlier one.
	Through int64
	// Withheld tells that this Page left something out.
	Withheld bool
	// End, when set, is why nothing comes after Events.
	End *protocol.Error
	// Cut, beside End, tells that the reader has lost its access while Events that
	// it was still allowed to see when they were read may wait to be sent: those
	// must not be sent any more.
	Cut bool
}

// Open begins a Feed. Errors: as views.Enter; PROTOCOL_VIOLATION for a position
// past the head; CURSOR_TOO_OLD for one that is no longer in the online log.
// They name the Group, whose id the reader sent.
func Open(ctx context.Context, source Source, request Request) (*Feed, *protocol.Error) {
	f := &Feed{source: source, request: request}
	// Watching begins before the head is looked at, so that whatever is committed
	// from here on is either below that head or wakes the Feed.
	f.wake, f.cancel = source.Log.Watch(request.GroupID)
	access, err := source.Views.Enter(ctx, request.Reader, request.GroupID)
	if err == nil {
		switch f.access = access; {
		case request.After > access.Head:
			err = protocol.NewError(protocol.CodeProtocolViolation, "after_the_head")
		case max(request.After, access.From-1) < access.Trimmed:
			err = source.Views.CursorTooOld(ctx, access)
		}
	}
	if err != nil {
		f.cancel()
		return nil, err.WithGroup(request.GroupID)
	}
	f.position, f.liveAfter = max(request.After, access.From-1), access.Head
	return f, nil
}

// Close ends the Feed.
func (f *Feed) Close() { f.cancel() }

// Start is the position the Feed began at.
func (f *Feed) Start() int64 { return f.position }

// LiveAfter is the head at the beginning: Events up to it are replay.
func (f *Feed) LiveAfter() int64 { return f.liveAfter }

// Grown gets a value when the log has grown; whoever takes it calls Outdated.
func (f *Feed) Grown() <-chan struct{} { return f.wake }

// Outdated tells, after a value from Grown, that the reader's access may have
// changed since the last Page: what is not sent of it must be asked for again.
func (f *Feed) Outdated() bool {
	f.stirred = true
	return !f.source.Log.AccessUnchanged(f.request.GroupID, max(f.position, f.access.Head))
}

// Rewind goes back to a position, from where Next begins with a new look at what
// the reader may see.
func (f *Feed) Rewind(position int64) {
	if !f.ended {
		f.position, f.stale = min(position, f.position), true
	}
}

// Next waits for the next Page: one with Events, one that left something out, or
// the last one. The error is the context's.
func (f *Feed) Next(ctx context.Context) (Page, error) {
	for {
		if err := ctx.Err(); err != nil {
			return Page{}, err
		}
		if f.ended {
			<-ctx.Done()
			return Page{}, ctx.Err()
		}
		page, waiting, err := f.step(ctx)
		if err != nil {
			if err := pause(ctx, retryPause); err != nil {
				return Page{}, err
			}
			continue
		}
		if waiting {
			if err := f.sleep(ctx); err != nil {
				return Page{}, err
			}
			continue
		}
		if len(page.Events) > 0 || page.Withheld || page.End != nil {
			return page, nil
		}
	}
}

// step judges one piece of the log. waiting tells that there is none.
func (f *Feed) step(ctx context.Context) (page Page, waiting bool, err error) {
	entered := f.stale
	if f.stale {
		limited, cancel := context.WithTimeout(ctx, answerWithin)
		access, refusal := f.source.Views.Enter(limited, f.request.Reader, f.request.GroupID)
		cancel()
		switch {
		case refusal == nil:
			f.access, f.stale = access, false
		case refusal.Code == protocol.CodeInternalError:
			return Page{}, false, refusal
		default:
			page, err := f.lastWords(ctx, refusal)
			return page, false, err
		}
	}
	raw, err := f.source.Log.Read(ctx, f.request.GroupID, f.position, pageSize)
	if errors.Is(err, events.ErrTrimmed) {
		page, err := f.tooOld(ctx)
		return page, false, err
	}
	if err != nil {
		return Page{}, false, err //nolint:wrapcheck // only retried
	}
	if len(raw) == 0 {
		return Page{}, true, nil
	}
	ending := false
	for i := range raw {
		// What happened before the reader entered is part of what it was let in by.
		if raw[i].Sequence > f.access.Head && views.ChangesAccess(raw[i], f.access) {
			raw, f.stale, ending = raw[:i+1], true, views.Ended(raw[i], f.request.Reader)
			break
		}
	}
	// A reader that is behind may have lost its access further on in the log.
	if known := max(raw[len(raw)-1].Sequence, f.access.Head); !entered && !ending && !f.source.Log.AccessUnchanged(f.request.GroupID, known) {
		f.stale = true
		return Page{}, false, nil
	}
	visible, err := f.visible(ctx, raw)
	if err != nil {
		f.stale = true
		return Page{}, false, err
	}
	wanted, err := f.attend(ctx, visible)
	if err != nil {
		f.stale = true
		return Page{}, false, err
	}
	f.position = raw[len(raw)-1].Sequence
	page = Page{Events: wanted, Through: f.position, Withheld: len(wanted) < len(raw)}
	if ending {
		f.ended = true
		page.End = protocol.NewError(protocol.CodeMembershipRequired, "").WithGroup(f.request.GroupID)
	}
	return page, false, nil
}

// tooOld ends a Feed whose position was trimmed while it stood there.
func (f *Feed) tooOld(ctx context.Context) (Page, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	refusal := f.source.Views.CursorTooOld(ctx, f.access).WithGroup(f.request.GroupID)
	if refusal.Code == protocol.CodeInternalError {
		return Page{}, refusal // the database was asked in vain: the answer is not known yet
	}
	f.ended = true
	return Page{Through: f.position, End: refusal}, nil
}

// visible keeps what the reader may see. At the end of the log no query is
// needed as a rule: what is there has not been redacted.
func (f *Feed) visible(ctx context.Context, raw []events.StoredEvent) ([]events.StoredEvent, error) {
	if f.access.Redacted || f.source.Log.Unredacted(f.request.GroupID, raw[0].Sequence) {
		return f.access.Shows(raw, nil), nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	return f.source.Views.Visible(ctx, f.access, raw) //nolint:wrapcheck // only retried
}

// lastWords ends a Feed whose reader may see nothing more, except the Event that
// ended its Membership, which lies ahead in the log (COMMANDS.md 3.7).
func (f *Feed) lastWords(ctx context.Context, refusal *protocol.Error) (Page, error) {
	page := Page{Through: f.position, End: refusal.WithGroup(f.request.GroupID), Cut: true}
	for after := f.position; refusal.Code == protocol.CodeMembershipRequired; {
		raw, err := f.source.Log.Read(ctx, f.request.GroupID, after, pageSize)
		if errors.Is(err, events.ErrTrimmed) && page.Through == f.position {
			// Archival ends Memberships, and those Events are never trimmed.
			if after, err = f.source.Views.Trimmed(ctx, f.access); err == nil {
				page.Through = after
				continue
			}
		}
		if err != nil {
			return Page{}, err //nolint:wrapcheck // only retried
		}
		if len(raw) == 0 {
			break
		}
		for _, e := range raw {
			if views.Ended(e, f.request.Reader) {
				page.Events, page.Through = []events.StoredEvent{e}, e.Sequence
			}
		}
		after = raw[len(raw)-1].Sequence
	}
	f.ended = true
	return page, nil
}

// sleep waits until the log has grown, or until a provisional Membership lapses.
func (f *Feed) sleep(ctx context.Context) error {
	if f.stirred {
		f.stirred = false
		return nil
	}
	var lapse <-chan time.Time
	if !f.access.Until.IsZero() {
		t := time.NewTimer(time.Until(f.access.Until))
		defer t.Stop()
		lapse = t.C
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-f.wake:
	case <-lapse:
		f.stale = true
		// The database's clock decides; asking it in a tight loop does not help.
		return pause(ctx, 20*time.Millisecond)
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
