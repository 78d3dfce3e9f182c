#!/usr/bin/env bash
# Measures checks from end to end and prints tables. bench/run.sh -help lists the options.
# scripts/dev.sh provides the PostgreSQL. bench starts everything else.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
go build -o ../bin/bench .
exec ../scripts/dev.sh --test with ../bin/bench "$@"
