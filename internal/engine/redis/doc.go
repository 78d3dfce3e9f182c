// Package redis is the engine whose counters all instances share.
//
// One Evaluate passes through four files:
//
//   - request.go turns its calls into a request, which holds copies of all that is sent.
//   - queue.go decides when requests are sent and which of them travel together. A request that
//     finds a pipeline free is sent at once; those that arrive meanwhile share the next one.
//   - pipeline.go builds the script runs of one pipeline. Calls whose counters are compact
//     (limit.Numbers.Compact) and have one cost share runs of evaluate_many.lua, and equal calls among them are one
//     question. Every other call is a run of evaluate_one.lua.
//   - verdicts.go works out the outcomes from the replies. evaluate_many.lua replies with stored
//     states, and the arithmetic is that of package limit; evaluate_one.lua replies with verdicts.
//
// An example: 64 clients check one subject at the same time, against a limit of 10 with nothing
// used. The first request is sent alone. The other 63 wait for a millisecond and travel in one
// pipeline, as one call that is asked 63 times. The script finds a count of 1 and answers "9 of 63
// allowed", and Redis stores 10. The instance tells 9 callers that they are allowed, with 8, 7, ...
// 0 remaining, and 54 that they are denied.
//
// A script is sent by its hash, and in full only where Redis does not know it. Nothing else is
// ever sent twice: a call whose fate is unknown may have been counted.
package redis
