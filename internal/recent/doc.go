// Package recent keeps recent decisions in memory, for people who want to know the reason of a
// denial.
//
// A Log is notified of every decision (check.Observer). It keeps the last 200 denials and 100
// samples of allowed checks of each tenant, and the subjects near a limit, in limited memory. A
// denial that repeats within a second is counted on the first one.
//
// While somebody watches one subject, every instance counts each decision about it (Watch).
//
// Nothing is stored elsewhere. A page that lists decisions asks all instances, over a Redis channel
// with encrypted messages, and merges the answers that arrive in time. If Redis is unavailable, the
// page shows the decisions of this instance. All lists of a tenant share the answers of half a
// second, and each selects what it shows. Tenants take turns in being answered.
//
// Example: ann is denied 50 times in a second by the rule api. The Log has one entry, with a count
// of 50. Support opens the page of decisions on instance 1. It asks instances 1 to 3, of which 1
// and 2 answer with 1 and 4 entries. The page lists 5 entries, the newest first.
package recent
