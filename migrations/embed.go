// Package migrations has the changes of the database schema, and applies them.
package migrations

import "embed"

// FS has the SQL files, NNNNNN_name.up.sql and NNNNNN_name.down.sql.
//
//go:embed *.sql
var FS embed.FS
