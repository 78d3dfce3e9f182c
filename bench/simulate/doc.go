// Package simulate is a model of Weir on more than one machine: instances, Redis servers, the
// network between them, and clients. It has a virtual clock and processes one event after the other
// (events.go), so it needs no machine of the size that it describes.
//
// A check passes through these files:
//
//   - clients.go sends it: clients in a closed loop, or a random stream.
//   - instance.go spends CPU time on it, and decides it in memory, if a denial is known or if units
//     are leased (lease.go). Otherwise it adds the check to the queue of a node.
//   - queue.go collects the checks of a node into pipelines, and fair.go chooses which ones.
//   - shard.go decides all checks of a pipeline, one pipeline after the other.
//   - breaker.go opens if a node is silent. The instance then decides alone.
//   - overload.go bounds the requests of an instance, with the code of package overload itself.
//
// machine.go has the cores for which processes compete. It takes the goroutines of a process in
// the order of Go's scheduler, which decides how many requests are ready when a pipeline is sent.
// What each step costs is an input (costs.go), and the costs are measured. How many checks share a
// pipeline is not an input: it follows from the scheduler and from the rules of the queue, which
// are those of the real one (rules.go).
//
// An example: 64 clients on one machine with two cores. The driver sends what its clients want to
// send, one request after the other. Meanwhile the instance begins with the first of them. It finds
// a free pipeline, and lets the other requests that are ready run first. Ten of them wait when it
// sends the pipeline. While Redis decides these, 25 more arrive, and share the second one.
//
// What the model does not have: Postgres, garbage collection, TLS, packet loss, limits of
// bandwidth, contention of many cores in one process, rules across several nodes, and counters that
// move between nodes. All limits are those of fixed windows. Units that are leased and not used are
// not returned, and units that were allowed during an outage are not settled afterwards.
//
// validate.go compares the model with what was measured on one machine. The other files are the
// questions that docs/scaling.md answers.
//
// simgo, a library for such models in Go, runs each process of the model in a goroutine of its own
// and switches between them twice per event. Here an event is a call of a function.
package simulate
