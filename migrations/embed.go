// Package migrations holds the history of the database schema and applies it.
package migrations

import "embed"

// FS holds the SQL files, NNNNNN_name.up.sql and NNNNNN_name.down.sql.
//
//go:embed *.sql
var FS embed.FS
