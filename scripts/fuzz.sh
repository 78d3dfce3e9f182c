#!/usr/bin/env bash
# Runs each fuzz target of the repository for the time given (30s), twice as many at once as there are
# processors, because some wait for sockets, with one worker each: more workers for one target would compete with each other. Inputs
# are made smaller in ten tries: where the coverage depends on the schedule, as with a server, more
# tries would take all of the time. Fails at the end if a target has found something: `go test` then
# names the file with the input, which belongs into the repository with the fix. Nothing else is
# written into the checkout. Before Go 1.27, the end of the time can be reported as a failure with
# nothing found (go.dev/issue/75804): such a target counts as one that found nothing.
# usage: scripts/fuzz.sh [TIME] [PATTERN]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
time=${1:-30s} pattern=${2:-.}
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

# targets prints the module, the package and the name of each target.
targets() {
  git grep -n --no-line-number '^func Fuzz' -- '*_test.go' | while IFS=: read -r file line; do
    name=${line#func }
    name=${name%%(*}
    [[ $name =~ $pattern ]] || continue
    folder=$(dirname "$file")
    # A module of its own has its own folder as its root.
    module=$folder
    until [ -e "$module/go.mod" ]; do module=$(dirname "$module"); done
    echo "$module ./$(realpath --relative-to="$module" "$folder") $name"
  done
}

# ended_late reports whether a log has only the failure that the end of the time causes.
ended_late() {
  grep -qx ' *context deadline exceeded' "$1" && ! grep -qE 'Failing input|panic|_test\.go:|fuzzing process' "$1"
}

# fuzz runs one target. A target that found something leaves its log as NAME.failed.
fuzz() {
  local began=$SECONDS
  if go -C "$1" test -run '^$' -fuzz "^$3\$" -fuzztime "$time" -fuzzminimizetime 10x -parallel 1 "$2" >"$logs/$3" 2>&1; then
    echo "$3 in ${2#./}: nothing found, $((SECONDS - began)) s, $(grep -o 'execs: [0-9]*' "$logs/$3" | tail -1)"
  elif ended_late "$logs/$3"; then
    echo "$3 in ${2#./}: nothing found, $((SECONDS - began)) s, ended late, $(grep -o 'execs: [0-9]*' "$logs/$3" | tail -1)"
  else
    mv "$logs/$3" "$logs/$3.failed"
    echo "$3 in ${2#./}: FAILED"
    cat "$logs/$3.failed"
  fi
}
export -f fuzz ended_late
export time logs

list=$(targets)
[ -n "$list" ] || { echo "no fuzz target matches $pattern" >&2; exit 1; }
# Both targets of a package wait for the same compilation otherwise: each package is compiled once.
while read -r module package; do
  go -C "$module" test -c -fuzz . -o /dev/null "$package"
done < <(cut -d' ' -f1,2 <<<"$list" | sort -u)
xargs -P "$((2 * $(getconf _NPROCESSORS_ONLN)))" -L 1 bash -c 'fuzz "$@"' fuzz <<<"$list"
failed=$(find "$logs" -name '*.failed' -printf '%f ')
[ -z "$failed" ] || { echo "failed: ${failed//.failed/}" >&2; exit 1; }
echo "$(wc -l <<<"$list") fuzz targets ran for $time each and found nothing"
