package authz

import (
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// pgInstant scans a timestamptz that may be -infinity, which becomes the zero time.
type pgInstant struct{ time.Time }

// ScanTimestamptz implements pgtype.TimestamptzScanner.
func (p *pgInstant) ScanTimestamptz(v pgtype.Timestamptz) error {
	p.Time = time.Time{}
	if v.Valid && v.InfinityModifier == pgtype.Finite {
		p.Time = v.Time.UTC()
	}
	return nil
}
