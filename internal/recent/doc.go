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
// page shows the decisions of this instance.
package recent
