// Package h2 serves HTTP/2 connections whose requests are mostly small, complete, and answered in
// microseconds: checks, and calls of gRPC.
//
// A server for any use of HTTP/2 gives every stream a goroutine, pipes for both directions and a
// context, and hands every frame to another goroutine for writing. For a call that fits in two
// frames, this costs several times as much as its decision. Here, a connection has one goroutine
// that reads, and a few that answer:
//
//   - The reader (conn.go) reads frames with http2.Framer and decodes headers with hpack.Decoder.
//     When a request is complete, or when the reader has to wait for more bytes, it gives the
//     request to an idle worker of the connection.
//   - A worker (worker.go) runs Config.Call. Call.AnswerHTTP appends the two frames of the answer
//     to the output of the connection, Call.Answer the three of gRPC, which has a trailer.
//   - The output (output.go) is written by the first worker that finds nobody writing. It lets all
//     other goroutines that can run go first, so the answers that were decided together are one
//     write.
//
// An example: Envoy sends eight calls in one TCP segment. The reader wakes eight workers. Their
// checks are one exchange with Redis, which wakes them all. The first one appends its answer and
// yields. The other seven append theirs. The first one writes all eight.
//
// Requests for which Config.Direct returns false go to an http.Handler (handler.go, response.go),
// on a goroutine each, with everything that such a handler needs. This is slower, and complete:
// bodies and answers of any length in both directions at the same time, trailers, flushes,
// deadlines, cancellation. If Config.Call cannot answer a request, the handler does, too.
//
// Everything that a client can make the server do is bounded: see Limits and flood.go. The frames
// themselves, their order and the compression of headers are checked by golang.org/x/net/http2.
package h2
