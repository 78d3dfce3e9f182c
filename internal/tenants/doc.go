// Package tenants keeps, in Postgres, who may ask and what they asked for: tenants, API keys,
// rules, plans, subjects, overrides, members.
//
// A Store works as two roles of the database. For everything that one tenant does, as weir_app:
// each transaction names the tenant, and row security shows it nothing else. For what crosses
// tenants (loading policies, finding a key, the operator's pages), as weir_system, which reads
// no more columns than that takes.
//
// Which tenant that is comes from an Actor, and an Actor comes from Authenticator alone (or from
// the operator's own commands), never from a request's body or path.
//
// Every change of configuration gets a number, the version, larger than all before it. The
// changed object carries it (its ETag), and so does the tenant. Watcher hears of changes by
// notification, and compares the number twice a second where a notification was lost.
package tenants
