// Package redis is the engine whose counters all instances share.
//
// One Evaluate passes through four files:
//
//   - request.go turns its calls into a request, with copies of everything that is sent.
//   - queue.go decides when requests are sent, and which of them share a pipeline. A request that
//     finds a free pipeline is sent immediately. Requests that arrive in the meantime share the
//     next one.
//   - pipeline.go and many.go build the script runs of one pipeline. Calls whose counters are
//     compact (limit.Numbers.Compact) and have one cost share runs of evaluate_many.lua. Equal
//     calls among them are one entry with a count. Every other call is a run of evaluate_one.lua.
//   - verdicts.go computes the outcomes from the replies. evaluate_many.lua replies with stored
//     states, and package limit has the arithmetic; evaluate_one.lua replies with verdicts.
//
// An example: 64 clients check one subject at the same time, against a limit of 10 with nothing
// used. The first request is sent alone. The other 63 wait for a millisecond and are sent in one
// pipeline, as one entry with the count 63. The script finds 1 unit used and answers "9 of 63
// allowed", and Redis stores 10. The instance answers 9 callers that they are allowed, with 8, 7,
// ... 0 remaining, and 54 callers that they are denied.
//
// A Cluster has several servers. servers.go finds the server of a key. Each server has its own
// queue and pipelines, its own connections and its own circuit breaker (package engine). Calls of
// all tenants on a node share runs (across.go, lua/node.lua). redirect.go follows calls whose slot
// is being moved, or was.
//
// A script is sent by its hash, and as text only if Redis does not know it. A call that a node did
// not decide, and says so, is sent again. Nothing else is ever sent twice, because a call with an
// unknown outcome may have been counted.
package redis
