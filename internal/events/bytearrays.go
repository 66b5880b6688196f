package events

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/jackc/pgx/v5/pgtype"
)

// byteaArrays encodes bytea[] parameters into a buffer that grows once. A commit
// carries its documents in arrays of some hundred kilobytes; appended one by one
// they were copied over and over, which took a tenth of the processor time of a
// Command.
type byteaArrays struct{ pgtype.Codec }

// PlanEncode is the wrapped codec's, but for [][]byte in binary format.
func (c byteaArrays) PlanEncode(m *pgtype.Map, oid uint32, format int16, value any) pgtype.EncodePlan {
	if _, ok := value.([][]byte); ok && format == pgtype.BinaryFormatCode {
		return encodeByteaArray{}
	}
	return c.Codec.PlanEncode(m, oid, format, value)
}

// useByteaArrays puts the codec into a connection's map.
func useByteaArrays(m *pgtype.Map) {
	if t, ok := m.TypeForOID(pgtype.ByteaArrayOID); ok {
		m.RegisterType(&pgtype.Type{Name: t.Name, OID: t.OID, Codec: byteaArrays{t.Codec}})
	}
}

type encodeByteaArray struct{}

// Encode appends the array in PostgreSQL's binary form: dimensions, a flag for
// NULL elements, the element type, length and lower bound, then the elements. A
// nil element is NULL, a nil slice is a NULL array.
func (encodeByteaArray) Encode(value any, buf []byte) ([]byte, error) {
	items := value.([][]byte)
	if items == nil {
		return nil, nil
	}
	size, nulls := 20, uint32(0)
	for _, b := range items {
		size += 4 + len(b)
		if b == nil {
			nulls = 1
		}
	}
	if size > math.MaxInt32 {
		return nil, fmt.Errorf("events: %d bytes are more than one parameter holds", size)
	}
	buf = slices.Grow(buf, size)
	word := func(v uint32) { buf = binary.BigEndian.AppendUint32(buf, v) }
	word(1)
	word(nulls)
	word(pgtype.ByteaOID)
	word(uint32(len(items))) //nolint:gosec // bounded by size
	word(1)
	for _, b := range items {
		if b == nil {
			word(math.MaxUint32)
			continue
		}
		word(uint32(len(b))) //nolint:gosec // bounded by size
		buf = append(buf, b...)
	}
	return buf, nil
}
