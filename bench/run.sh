#!/usr/bin/env bash
# Measures checks from end to end and prints tables. bench/run.sh -help lists the options.
# bench/run.sh clients measures the Go client instead: checks over HTTP, batches, and decisions from leases.
# bench/run.sh -simulate measures nothing: it simulates several machines, for docs/scaling.md.
# scripts/dev.sh provides the PostgreSQL. bench starts everything else.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
if [ "${1:-}" = clients ]; then
  cd ..
  go -C sdk/go test -run '^$' -bench '^BenchmarkLease$' -count 4 .
  exec scripts/dev.sh --test with go run ./tests/withserver \
    go -C sdk/go test -tags server -run '^$' -bench '^Benchmark(Server|Batching)$' -benchtime 20x -count 2 .
fi
go build -o ../bin/bench .
if [ "${1:-}" = -simulate ]; then
  exec ../bin/bench "$@"
fi
exec ../scripts/dev.sh --test with ../bin/bench "$@"
