// Command bare answers every check immediately. It is the bare HTTP server to which all figures are
// relative.
package main

import (
	"context"
	"flag"
	"log"
	"time"

	"weir/bench/minimal"
)

func main() {
	var addresses minimal.Addresses
	addresses.Flags()
	calls := flag.String("grpc", "", "`address` to serve Envoy's rate-limit service on, over gRPC")
	flag.Parse()
	if *calls != "" {
		go func() { log.Fatal(serveGRPC(*calls)) }()
	}
	allowed := minimal.Verdict{Allowed: true, Limit: 1_000_000_000, Remaining: 999_999_999, ResetAfter: time.Minute}
	if err := addresses.Serve(func(context.Context, string) (minimal.Verdict, error) { return allowed, nil }); err != nil {
		log.Fatal(err)
	}
}
