// Package migrations holds the database schema as numbered goose migrations.
//
// A file that has been released is never edited: databases in the field have
// applied it already and would silently keep the old shape. Add the next number.
package migrations

import "embed"

// Files are the migrations, in their order by number.
//
//go:embed *.sql
var Files embed.FS
