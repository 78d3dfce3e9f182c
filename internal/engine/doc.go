// Package engine counts. It decides calls. A call charges a cost to all counters of one check, or
// to none.
//
// # Words
//
//   - A Counter is the stored state of one rule for one set of counted values. Its key names it;
//     its numbers say how it counts.
//   - A Call is one check as an engine sees it: a cost against all its counters at once. It knows
//     nothing about tenants' policies, subjects or plans.
//   - An Outcome is the answer: allowed or not, and a verdict of each counter.
//   - A Refund returns units that were charged and not used.
//   - An Engine evaluates calls. Memory counts in this process; engine/redis counts in Redis, for
//     all instances.
//
// # The stack
//
// Checks are served by a Stack of engines, each around the next:
//
//	Denials    answers a denial that is certain to hold, for 150 ms at most
//	Spread     splits a call whose counters have several hash tags, or that is too much work
//	Fallback   answers if the store cannot, by the OnUnavailable of each counter
//	Leases     grants prefetched units of leased rules
//	Breaker    keeps calls away from a server of the store that does not answer
//	Redis      counts, one round trip for all calls that wait
//
// A layer answers the calls that it can answer and passes on the others. A call passes through the
// layers once, down and back. There is one exception: if a call that also prefetches units is
// denied, Leases sends it again with the cost of the check only.
//
// A layer identifies a call by its counters, their numbers and its cost only. If a limit changes,
// the numbers change, and the call is new to every layer. Configuration changes therefore need no
// message to the layers. A reset does, because it changes the state and not the call. Reset passes
// through every layer, from the store upwards.
//
// # One check, with numbers
//
// A rule allows 100 units a minute. Its counter in Redis holds 99. Two checks of cost 1 arrive at
// one instance in the same millisecond, and a third 20 ms later.
//
//  1. Denials has no denial of this counter. The rule is strict, so Leases passes the calls on. The
//     breaker is closed. Both calls wait in the queue of the Redis engine and are sent together.
//  2. The script reads the counter once. One of the two equal calls fits: the script answers "one
//     allowed" with the state that it found, 99, and stores 100.
//  3. The engine computes both verdicts from that state. The first call is allowed with 0
//     remaining. The second is denied and has to wait 14 s, until the window ends.
//  4. On the way back, Denials remembers the denial, with the counter, its numbers and the cost.
//  5. The third check is the same call. Denials answers it: denied, wait 13.98 s. Redis is not
//     involved.
//  6. An admin raises the limit to 200. The next check has other numbers, so Denials has no answer,
//     and the check is allowed with 99 remaining.
//
// Then Redis fails. The next call times out after 50 ms, and Fallback answers it from a counter in
// memory with this instance's share of the limit. The outcome is Degraded. After five consecutive
// failures and 150 ms without an answer, the breaker opens, and no call waits any more.
package engine
