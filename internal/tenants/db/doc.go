// Package db has the queries of internal/tenants/queries as Go functions. sqlc generates all other
// files of it (make generate): never edit them. Only internal/tenants uses the package.
//
// Words: Queries runs queries on a connection, a pool or a transaction. A query with several
// parameters has a struct of them, such as UpdateRuleParams. A row of a table is a struct of
// models.go, and a row of any other query one of its own.
//
// Example: rule.sql has a query with the comment "-- name: InsertRule :one". It becomes the method
// InsertRule of Queries, which takes InsertRuleParams and returns the Rule that it has stored.
// After a change of the file, run make generate. make verify fails if that was forgotten.
package db
