// Package tenants stores the configuration in Postgres: tenants, API keys, rules, plans, subjects,
// overrides, members.
//
// A Store uses two roles of the database. For everything of a single tenant it uses weir_app: each
// transaction sets the tenant, and row-level security hides everything else. For operations on
// several tenants (loading policies, finding a key, the operator's pages) it uses weir_system,
// which can read only the columns that these need.
//
// The tenant comes from an Actor. Only Authenticator and the operator's own commands create an
// Actor; a request's body or path cannot determine the tenant.
//
// Every change of configuration gets a number, the version, which is greater than all before it.
// The changed object has the version (its ETag), and so does the tenant. Watcher is notified of
// changes, and compares the number twice per second in case a notification was lost.
//
// An example: an admin changes a rule of the tenant acme. The transaction updates the rule, appends
// a row to acme's audit trail, and stores version 1042 in both the rule and the tenant. With the
// commit, all instances are notified; each reads the rows of acme that are newer than the version
// that it knows, and compiles the policy again.
package tenants
