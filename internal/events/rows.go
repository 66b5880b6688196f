package events

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// columnType is how a projection column travels: as one array parameter per
// column, so that a table costs one statement however many rows it gets.
type columnType byte

const (
	typeText   columnType = 't' // string
	typeMaybe  columnType = 'T' // string, "" is NULL
	typeInt    columnType = 'i' // int64
	typeBool   columnType = 'b' // bool
	typeTime   columnType = 'z' // time.Time
	typeMaybeZ columnType = 'Z' // time.Time, zero is NULL
	typeBytes  columnType = 'x' // []byte
)

func (t columnType) sql() string {
	switch t {
	case typeInt:
		return "bigint"
	case typeBool:
		return "boolean"
	case typeTime, typeMaybeZ:
		return "timestamptz"
	case typeBytes:
		return "bytea"
	}
	return "text"
}

type column struct {
	name string
	typ  columnType
}

// table describes a projection. Every table starts with tree_id and group_id,
// and the first keys columns are its primary key.
type table struct {
	name    string
	columns []column
	keys    int

	upsert, copyIn, selectGroup string
}

func newTable(name string, keys int, columns ...column) *table {
	t := &table{name: name, keys: keys, columns: append([]column{{"tree_id", typeInt}, {"group_id", typeText}}, columns...)}
	var names, params, sets, order []string
	for i, c := range t.columns {
		names = append(names, c.name)
		params = append(params, fmt.Sprintf("$%d::%s[]", i+1, c.typ.sql()))
		if i >= keys {
			sets = append(sets, c.name+" = excluded."+c.name)
		}
		if i >= 2 && i < keys {
			order = append(order, c.name)
		}
	}
	list := strings.Join(names, ", ")
	t.upsert = fmt.Sprintf("INSERT INTO %s (%s) SELECT * FROM unnest(%s) ON CONFLICT (%s) DO UPDATE SET %s",
		name, list, strings.Join(params, ", "), strings.Join(names[:keys], ", "), strings.Join(sets, ", "))
	t.copyIn = fmt.Sprintf("COPY %s (%s) FROM STDIN (FORMAT binary)", name, list)
	t.selectGroup = fmt.Sprintf("SELECT %s FROM %s WHERE tree_id = $1 AND group_id = $2", list, name)
	if len(order) > 0 {
		t.selectGroup += " ORDER BY " + strings.Join(order, ", ")
	}
	return t
}

// Row is one projection row, its values in the order of the table's columns.
type Row struct {
	table  *table
	values []any
}

// key identifies the row within its table.
func (r Row) key() string {
	var b strings.Builder
	for _, v := range r.values[:r.table.keys] {
		fmt.Fprintf(&b, "%v\x00", v)
	}
	return b.String()
}

// Rows collects projection rows of one transaction; a row that is written twice
// keeps the later content.
type Rows struct {
	tables []*table
	rows   map[*table][]Row
	at     map[*table]map[string]int
	// fresh are rows that cannot be there yet, and are written once.
	fresh map[*table][]Row
}

func (r *Rows) add(t *table, values ...any) {
	if len(values) != len(t.columns) {
		panic(fmt.Sprintf("events: %d values for %d columns of %s", len(values), len(t.columns), t.name))
	}
	if r.rows == nil {
		r.rows, r.at = map[*table][]Row{}, map[*table]map[string]int{}
	}
	row := Row{t, values}
	if _, ok := r.rows[t]; !ok {
		r.tables = append(r.tables, t)
		r.at[t] = map[string]int{}
	}
	k := row.key()
	if i, ok := r.at[t][k]; ok {
		r.rows[t][i] = row
		return
	}
	r.at[t][k] = len(r.rows[t])
	r.rows[t] = append(r.rows[t], row)
}

// addFresh adds a row that nothing has written before, in this transaction or an
// earlier one.
func (r *Rows) addFresh(t *table, values ...any) {
	if r.fresh == nil {
		r.fresh = map[*table][]Row{}
	}
	r.fresh[t] = append(r.fresh[t], Row{t, values})
}

// queue adds one upsert per table.
func (r *Rows) queue(b *pgx.Batch) {
	for t, rows := range r.fresh {
		t.queue(b, rows)
	}
	r.queueUpserts(b)
}

// queueUpserts leaves the fresh rows out.
func (r *Rows) queueUpserts(b *pgx.Batch) {
	for _, t := range r.tables {
		t.queue(b, r.rows[t])
	}
}

func (t *table) queue(b *pgx.Batch, rows []Row) {
	args := make([]any, len(t.columns))
	for i, c := range t.columns {
		args[i] = columnOf(rows, i, c.typ)
	}
	b.Queue(t.upsert, args...)
}

// binary encodes rows for COPY.
func (t *table) binary(out *copyRows, rows []Row) {
	for _, r := range rows {
		out.row(uint16(len(t.columns))) //nolint:gosec // a table has few columns
		for i, c := range t.columns {
			out.column(c.typ, r.values[i])
		}
	}
}

func columnOf(rows []Row, i int, typ columnType) any {
	switch typ {
	case typeText:
		return gather(rows, i, func(v any) string { return v.(string) })
	case typeMaybe:
		return gather(rows, i, func(v any) *string { return maybe(v.(string)) })
	case typeInt:
		return gather(rows, i, func(v any) int64 { return v.(int64) })
	case typeBool:
		return gather(rows, i, func(v any) bool { return v.(bool) })
	case typeTime:
		return gather(rows, i, func(v any) time.Time { return v.(time.Time) })
	case typeMaybeZ:
		return gather(rows, i, func(v any) *time.Time { return maybeTime(v.(time.Time)) })
	case typeBytes:
		return gather(rows, i, func(v any) []byte { return v.([]byte) })
	}
	panic("events: column type " + string(typ))
}

func gather[T any](rows []Row, i int, value func(any) T) []T {
	out := make([]T, len(rows))
	for n, r := range rows {
		out[n] = value(r.values[i])
	}
	return out
}

func maybe(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func maybeTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// scan reads a row of the table back into the form add takes.
func (t *table) scan(rows pgx.Rows) (Row, error) {
	dest := make([]any, len(t.columns))
	for i, c := range t.columns {
		switch c.typ {
		case typeText:
			dest[i] = new(string)
		case typeMaybe:
			dest[i] = new(*string)
		case typeInt:
			dest[i] = new(int64)
		case typeBool:
			dest[i] = new(bool)
		case typeTime:
			dest[i] = new(time.Time)
		case typeMaybeZ:
			dest[i] = new(*time.Time)
		case typeBytes:
			dest[i] = new([]byte)
		}
	}
	if err := rows.Scan(dest...); err != nil {
		return Row{}, err
	}
	values := make([]any, len(dest))
	for i, d := range dest {
		switch p := d.(type) {
		case *string:
			values[i] = *p
		case **string:
			values[i] = ""
			if *p != nil {
				values[i] = **p
			}
		case *int64:
			values[i] = *p
		case *bool:
			values[i] = *p
		case *time.Time:
			values[i] = p.UTC()
		case **time.Time:
			values[i] = time.Time{}
			if *p != nil {
				values[i] = (*p).UTC()
			}
		case *[]byte:
			values[i] = *p
		}
	}
	return Row{t, values}, nil
}

// differences names the columns in which two rows of one key differ.
func (r Row) differences(o Row) []string {
	var out []string
	for i, c := range r.table.columns {
		var same bool
		switch v := r.values[i].(type) {
		case []byte:
			same = bytes.Equal(v, o.values[i].([]byte))
		case time.Time:
			same = v.Equal(o.values[i].(time.Time))
		default:
			same = v == o.values[i]
		}
		if !same {
			out = append(out, c.name)
		}
	}
	return out
}
