#!/usr/bin/env bash
# Runs the Go benchmarks of the parts of a check, and compares two states of the code with benchstat.
#
#   scripts/microbench.sh [-old REV] [-count N] [-time D] [-bench REGEXP] [-write]
#
# -old REV       compare with this commit. Both are built first, then run in turns, so that a
#                slow phase of the machine affects both. Without it, only the current state is run.
# -count N       number of runs of each benchmark (6)
# -time D        duration of each run (100ms)
# -bench REGEXP  which benchmarks (.)
# -write         put the comparison into docs/performance.md
#
# The results are left in bin/microbench-new.txt and bin/microbench-old.txt, as benchstat reads them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ROOT=$PWD
if [ -z "${WEIR_TEST_DATABASE_URL:-}" ]; then exec scripts/dev.sh --test with "$ROOT/scripts/microbench.sh" "$@"; fi

OLD= COUNT=6 TIME=100ms BENCH=. WRITE=
while [ $# -gt 0 ]; do
  case $1 in
    -old) OLD=$2; shift 2 ;;
    -count) COUNT=$2; shift 2 ;;
    -time) TIME=$2; shift 2 ;;
    -bench) BENCH=$2; shift 2 ;;
    -write) WRITE=1; shift ;;
    *) sed -n '2,/^set /{/^set /!p}' "$0" | cut -c3-; exit 2 ;;
  esac
done
PACKAGES="internal/api internal/check internal/engine/redis internal/once internal/tenants internal/usage"
WORK=$(mktemp -d)
finish() {
  if [ -d "$WORK/tree" ]; then git worktree remove --force "$WORK/tree"; fi
  rm -rf "$WORK"
}
trap finish EXIT

compile() { # $1: checkout, $2: old or new
  local package
  mkdir -p "$WORK/$2"
  for package in $PACKAGES; do
    [ -d "$1/$package" ] || continue # an older commit may lack it
    (cd "$1" && go test -c -o "$WORK/$2/${package##*/}.test" "./$package")
  done
}
run() { # $1: checkout, $2: old or new
  local package
  for package in $PACKAGES; do
    [ -d "$1/$package" ] || continue
    (cd "$1/$package" && "$WORK/$2/${package##*/}.test" -test.run '^$' -test.bench "$BENCH" -test.benchmem -test.benchtime "$TIME") |
      sed '/^PASS/d' >>"bin/microbench-$2.txt" # a package may have no benchmark of that name
  done
}

mkdir -p bin
rm -f bin/microbench-old.txt bin/microbench-new.txt
echo "microbench: building" >&2
compile "$ROOT" new
if [ -n "$OLD" ]; then
  git worktree add --quiet --detach "$WORK/tree" "$OLD"
  compile "$WORK/tree" old
fi
for round in $(seq "$COUNT"); do
  echo "microbench: round $round of $COUNT" >&2
  if [ -n "$OLD" ]; then run "$WORK/tree" old; fi
  run "$ROOT" new
done

benchstat() { go tool -modfile=tools/benchstat.mod benchstat "$@"; }
if [ -z "$OLD" ]; then
  benchstat bin/microbench-new.txt
  exit
fi
(cd bin && cp microbench-old.txt "$WORK/old.txt" && cp microbench-new.txt "$WORK/new.txt")
table=$(cd "$ROOT" && benchstat "old=$WORK/old.txt" "new=$WORK/new.txt")
printf '%s\n' "$table"
if [ -n "$WRITE" ]; then
  {
    sed '/^<!-- microbench: begin -->$/q' docs/performance.md
    printf -- '- %s: old is %s, new is %s; %s runs of %s each, in turns.\n\n```\n%s\n```\n' "$(date -u '+%Y-%m-%d %H:%M UTC')" \
      "$(git rev-parse --short "$OLD")" "$(git rev-parse --short HEAD)" "$COUNT" "$TIME" "$table"
    sed -n '/^<!-- microbench: end -->$/,$p' docs/performance.md
  } >"$WORK/page.md"
  grep -q '^<!-- microbench: end -->$' "$WORK/page.md" || { echo "microbench: docs/performance.md has no place for it" >&2; exit 1; }
  cp "$WORK/page.md" docs/performance.md
fi
