// Package usage counts decisions for people and invoices.
//
// A Recorder is notified of every decision (check.Observer) and adds it to counts in memory: by
// tenant, minute, rule, plan and resource, and the busiest subjects of each hour. Every second it
// passes a Batch of new counts to a Sink, which stores it in Postgres. A batch has an id, so that
// one with an unknown outcome can be sent again without counting twice. While the sink is
// unavailable, counts wait in limited memory, and those of the tenants with the most rows become
// coarser: minutes become hours, and hours become sums.
//
// A Meter records the units of metered rules exactly, by every subject and hour, and passes them to
// a MeterSink in the same way. It drops nothing: beyond a tenant's share of the memory, it counts
// the units of further subjects without the subject.
//
// An example: 1,000 checks of "orders:create" in one second, 10 of them denied by rule "api",
// become one row for the checks (990 allowed, 10 denied) and one row for the rule.
package usage
