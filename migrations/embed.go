// Package migrations has the changes of the database schema, and applies them.
//
// Each change is a pair of files with one number: up applies it, down reverts it. The database has
// the number of the last one. A change that was released is never edited, and old and new servers
// both run on it, so that instances can be replaced one by one.
//
// Example: a database is at 12, and the binary has the files up to 14. `server migrate up` runs
// 000013_sessions.up.sql and 000014_subject_states.up.sql, and the database is
// at 14. A second run changes nothing.
package migrations

import "embed"

// FS has the SQL files, NNNNNN_name.up.sql and NNNNNN_name.down.sql.
//
//go:embed *.sql
var FS embed.FS
