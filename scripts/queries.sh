#!/usr/bin/env bash
# The Go code of the queries in internal/tenants/queries.
#
#   scripts/queries.sh generate   write it with sqlc, and note what it was written from
#   scripts/queries.sh verify     fail if a query, a migration, sqlc's version or settings, or the
#                                 code changed since it was written
#
# Building sqlc, which contains the parser of PostgreSQL, takes minutes. So verify does not run it but
# compares checksums: generate writes those of everything that it read and wrote to generated.sha256.
set -euo pipefail
export LC_ALL=C # the same order everywhere
cd "$(dirname "${BASH_SOURCE[0]}")/.."
SUMS=internal/tenants/queries/generated.sha256

sums() {
  local sha256=(sha256sum)
  command -v sha256sum >/dev/null || sha256=(shasum -a 256)
  "${sha256[@]}" sqlc.yaml tools/sqlc.mod internal/tenants/queries/*.sql migrations/*.up.sql internal/tenants/db/*.go
}

case "${1:-}" in
generate)
  go tool -modfile=tools/sqlc.mod sqlc generate
  sums >"$SUMS"
  ;;
verify)
  sums | diff -u "$SUMS" - || { echo 'run: make generate'; exit 1; }
  ;;
*)
  sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
  exit 2
  ;;
esac
