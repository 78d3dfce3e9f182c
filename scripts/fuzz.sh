#!/usr/bin/env bash
# Runs each fuzz target of the repository, one after the other, each for the time given (30s). Fails
# at the end if one of them has found something: `go test` then names the file with the input, which
# belongs into the repository with the fix.
# usage: scripts/fuzz.sh [TIME] [PATTERN]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
time=${1:-30s} pattern=${2:-.}
failed=() count=0
while IFS=: read -r file line; do
  name=${line#func }
  name=${name%%(*}
  [[ $name =~ $pattern ]] || continue
  folder=$(dirname "$file")
  count=$((count + 1))
  echo "== $name in $folder"
  # A module of its own has its own folder as its root.
  module=$folder
  until [ -e "$module/go.mod" ]; do module=$(dirname "$module"); done
  go -C "$module" test -run '^$' -fuzz "^$name\$" -fuzztime "$time" "./$(realpath --relative-to="$module" "$folder")" || failed+=("$name")
done < <(git grep -n --no-line-number '^func Fuzz' -- '*_test.go')
[ "$count" -gt 0 ] || { echo "no fuzz target matches $pattern" >&2; exit 1; }
[ "${#failed[@]}" = 0 ] || { echo "failed: ${failed[*]}" >&2; exit 1; }
echo "$count fuzz targets ran for $time each and found nothing"
