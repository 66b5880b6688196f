package events

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A large batch sends its receipts and Events with COPY. The server then fills
// whole pages at once and writes one log record for each, which costs it a third
// less than an insert from arrays, and no buffer grows here on the way. The price
// is a round trip per table, so that a small batch is quicker in one pipeline.

// commitBulk is commitPiped for a large batch. Conditions come first, so that a
// batch that was decided too early sends nothing else.
func (s *Store) commitBulk(ctx context.Context, conn *pgxpool.Conn, b *Batch) error {
	var first pgx.Batch
	first.Queue("begin")
	b.queueWorld(&first)
	b.queueHeads(&first)
	if err := conn.SendBatch(ctx, &first).Close(); err != nil {
		return s.beforeCommit(ctx, conn, err)
	}
	rows, probes := b.receiptRows()
	if err := s.copyIn(ctx, conn, copyReceipts, func(c *copyRows) error {
		return b.receiptsBinary(c, rows)
	}); err != nil {
		return err
	}
	if err := s.copyIn(ctx, conn, copyEvents, b.eventsBinary); err != nil {
		return err
	}
	for t, rows := range b.Rows.fresh {
		if err := s.copyIn(ctx, conn, t.copyIn, func(c *copyRows) error {
			t.binary(c, rows)
			return nil
		}); err != nil {
			return err
		}
	}
	var last pgx.Batch
	b.queueAfterReceipts(&last, probes)
	if err := b.queueAdmissions(&last); err != nil {
		return s.beforeCommit(ctx, conn, err)
	}
	if err := b.queueOrgEvents(&last); err != nil {
		return s.beforeCommit(ctx, conn, err)
	}
	if err := b.queueRest(&last); err != nil {
		return s.beforeCommit(ctx, conn, err)
	}
	b.Rows.queueUpserts(&last)
	b.queueEnd(&last)
	last.Queue("commit")
	if err := conn.SendBatch(ctx, &last).Close(); err != nil {
		return s.outcome(ctx, conn, err)
	}
	return nil
}

// beforeCommit is outcome for an error that came before the commit was sent:
// whatever happened to the connection, the transaction is not committed.
func (s *Store) beforeCommit(ctx context.Context, conn *pgxpool.Conn, err error) error {
	if err := s.outcome(ctx, conn, err); !errors.Is(err, ErrIndeterminate) {
		return err
	}
	return unavailable(err)
}

const (
	copyReceipts = `COPY receipts (actor_type, actor_id, action_id, signing_hash, tree_id, group_id, kind, accepted_at,
	admission_id, admission_key_id, admission_at, admission_by, response, command) FROM STDIN (FORMAT binary)`

	copyEvents = `COPY events (tree_id, group_id, sequence, event_id, kind, occurred_at, command_hash, signing_hash,
	admission_id, admission_key_id, admission_at, admission_by, document) FROM STDIN (FORMAT binary)`
)

// copyBuffers are reused: a buffer of some hundred kilobytes for each round
// would be most of what the collector has to clear.
var copyBuffers = sync.Pool{New: func() any { return new(copyRows) }}

// copyIn encodes rows and sends them. Nothing is sent when a value cannot be
// encoded, or when there are none.
func (s *Store) copyIn(ctx context.Context, conn *pgxpool.Conn, sql string, encode func(*copyRows) error) error {
	c := copyBuffers.Get().(*copyRows)
	c.begin()
	if err := encode(c); err != nil {
		return s.beforeCommit(ctx, conn, err)
	}
	if c.rows > 0 {
		c.end()
		if _, err := conn.Conn().PgConn().CopyFrom(ctx, c.reader(), sql); err != nil {
			// The buffer is left to the collector: a copy that broke off may still be
			// read from it.
			return s.beforeCommit(ctx, conn, err)
		}
	}
	copyBuffers.Put(c)
	return nil
}

// receiptsBinary writes the columns in the order of copyReceipts.
func (b *Batch) receiptsBinary(c *copyRows, rows []Receipt) error {
	for i := range rows {
		r := &rows[i]
		hash, err := hashBytes(r.SigningHash)
		if err != nil {
			return err
		}
		record, err := uuidBytes(r.Admission.AdmissionRecordID)
		if err != nil {
			return err
		}
		c.row(14)
		c.text(r.Actor.Type)
		c.text(r.Actor.ID)
		c.text(r.ActionID)
		c.bytes(hash)
		if r.GroupID == "" {
			c.null()
			c.null()
		} else {
			c.int(r.TreeID)
			c.text(r.GroupID)
		}
		c.text(r.Kind)
		c.time(r.AcceptedAt)
		c.bytes(record[:])
		c.text(r.Admission.KeyID)
		c.time(r.AdmittedAt)
		c.text(b.Authority.ID)
		c.bytes(r.Response)
		c.bytes(r.Command)
	}
	return nil
}

// eventsBinary writes the columns in the order of copyEvents.
func (b *Batch) eventsBinary(c *copyRows) error {
	for i := range b.Events {
		ev := &b.Events[i]
		k, err := b.keysOf(ev.EventID, ev.SigningHash, ev.CommandHash, ev.OccurredAt)
		if err != nil {
			return err
		}
		c.row(13)
		c.int(ev.TreeID)
		c.text(ev.GroupID)
		c.int(ev.Sequence)
		c.bytes(k.event[:])
		c.text(ev.Kind)
		c.time(ev.OccurredAt)
		c.maybeBytes(k.command)
		c.bytes(k.signing)
		c.bytes(k.record[:])
		c.text(b.AuthorityKeyID)
		c.time(ev.OccurredAt)
		c.text(b.Authority.ID)
		c.bytes(ev.Document)
	}
	return nil
}

// copyRows is PostgreSQL's binary COPY format: a header, for each row the number
// of its fields and each field behind its length (-1 for NULL), a trailer.
type copyRows struct {
	buf  []byte
	rows int
}

// mostCopyBuffer is the capacity a buffer keeps between two uses, in bytes.
const mostCopyBuffer = 4 << 20

func (c *copyRows) begin() {
	if cap(c.buf) > mostCopyBuffer {
		c.buf = nil
	}
	c.rows = 0
	c.buf = append(c.buf[:0], "PGCOPY\n\xff\r\n\x00"...)
	c.buf = append(c.buf, 0, 0, 0, 0, 0, 0, 0, 0) // no flags, no extension
}

func (c *copyRows) end() { c.buf = binary.BigEndian.AppendUint16(c.buf, 0xffff) }

func (c *copyRows) reader() io.Reader { return bytes.NewReader(c.buf) }

func (c *copyRows) row(fields uint16) {
	c.rows++
	c.buf = binary.BigEndian.AppendUint16(c.buf, fields)
}

func (c *copyRows) null() { c.buf = append(c.buf, 0xff, 0xff, 0xff, 0xff) }

func (c *copyRows) text(s string) {
	c.buf = append(binary.BigEndian.AppendUint32(c.buf, uint32(len(s))), s...) //nolint:gosec // a field is far below 1 GB
}

func (c *copyRows) bytes(b []byte) {
	c.buf = append(binary.BigEndian.AppendUint32(c.buf, uint32(len(b))), b...) //nolint:gosec // a field is far below 1 GB
}

// maybeBytes writes nil as NULL.
func (c *copyRows) maybeBytes(b []byte) {
	if b == nil {
		c.null()
		return
	}
	c.bytes(b)
}

func (c *copyRows) int(n int64) {
	c.buf = binary.BigEndian.AppendUint64(append(c.buf, 0, 0, 0, 8), uint64(n)) //nolint:gosec // two's complement on purpose
}

// column appends a projection column.
func (c *copyRows) column(typ columnType, value any) {
	switch v := value.(type) {
	case string:
		if typ == typeMaybe && v == "" {
			c.null()
			return
		}
		c.text(v)
	case int64:
		c.int(v)
	case bool:
		if v {
			c.bytes([]byte{1})
		} else {
			c.bytes([]byte{0})
		}
	case time.Time:
		if typ == typeMaybeZ && v.IsZero() {
			c.null()
			return
		}
		c.time(v)
	case []byte:
		c.maybeBytes(v)
	default:
		panic(fmt.Sprintf("events: a column of type %c holds %T", typ, value))
	}
}

// epoch2000 is where PostgreSQL counts the microseconds of a timestamp from.
var epoch2000 = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()

func (c *copyRows) time(t time.Time) { c.int(t.UnixMicro() - epoch2000) }
