// Package limit defines rules and how each algorithm counts. It is pure: it stores nothing, reads
// no clock and imports no other package of this module.
//
// Its words:
//
//   - A Rule is what is limited and how: a resource pattern, an algorithm, a window and a limit.
//   - Numbers are what one algorithm decides by: limit, window, burst, sub-bucket, penalty.
//   - A State is what is stored about one counter. Each algorithm has one, in the file of its name.
//   - Used is what counts against the quota at an instant. It falls by itself and rises only by a
//     charge. The quota is the limit, or the burst of a bucket.
//   - A Verdict is what one counter says about a cost: allowed, remaining, and how long to wait.
//
// A Judgement combines these in three steps, Admit, Charge and Finish, so that an engine can
// evaluate several counters before it charges any of them.
//
// An example: a fixed window of 10 units a minute, 8 of them used, at 20 s past the minute. A cost
// of 3 does not fit: Admit answers Allowed false and Remaining 2. Nothing is charged. Finish
// computes when at most 10-3 = 7 units are used, which is at the end of the window: RetryAfterMS is
// 40 000. A cost of 2 fits: Charge raises the count to 10, Remaining is 0, and ResetMS is the end
// of the window.
//
// Every algorithm has a twin of its name in engine/redis/lua. Both must pass the same test vectors.
package limit
