package events

import (
	"bytes"
	"testing"

	"github.com/jackc/pgx/v5/pgtype"
)

// The codec must write what the library's writes.
func TestByteaArraysAreEncodedLikeTheLibraryDoes(t *testing.T) {
	own, library := pgtype.NewMap(), pgtype.NewMap()
	useByteaArrays(own)
	for name, value := range map[string][][]byte{
		"nil":              nil,
		"empty":            {},
		"one":              {[]byte("a")},
		"empty element":    {{}, []byte("b")},
		"NULL element":     {[]byte("a"), nil, []byte("c")},
		"long":             {bytes.Repeat([]byte("x"), 70_000), bytes.Repeat([]byte("y"), 3)},
		"only NULLs":       {nil, nil},
		"bytes above 0x7f": {{0xff, 0x00, 0x80}},
	} {
		for _, before := range []string{"", "earlier parameters"} {
			want, err := library.Encode(pgtype.ByteaArrayOID, pgtype.BinaryFormatCode, value, []byte(before))
			if err != nil {
				t.Fatal(err)
			}
			got, err := own.Encode(pgtype.ByteaArrayOID, pgtype.BinaryFormatCode, value, []byte(before))
			if err != nil || !bytes.Equal(got, want) || (got == nil) != (want == nil) {
				t.Errorf("%s: %x, %v, want %x", name, got, err, want)
			}
		}
	}
}
