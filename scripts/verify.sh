#!/usr/bin/env bash
# Verifies that generated code, formatting and modules are up to date. Changes nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
failed=0
step() { # $1: the description; the rest: a command that succeeds without output if all is in order
  local name=$1 out status=0
  shift
  out=$("$@" 2>&1) || status=$?
  # On a machine without a module cache the go command reports each download.
  out=$(grep -v '^go: downloading ' <<<"$out" || true)
  if [ "$status" = 0 ] && [ -z "$out" ]; then
    echo "ok    $name"
  else
    printf 'FAIL  %s\n%s\n' "$name" "$out"
    failed=1
  fi
}

step "generated queries are fresh" scripts/queries.sh verify
# templ cannot report stale files, so the pages are generated into a copy and compared.
fresh_pages() {
  local copy
  copy=$(mktemp -d)
  trap 'rm -rf "$copy"' RETURN
  cp internal/dashboard/*.templ "$copy"/
  go tool templ generate -path "$copy" 2>"$copy/log" || { cat "$copy/log"; return 1; }
  for page in "$copy"/*_templ.go; do
    diff -u "internal/dashboard/${page##*/}" "$page" || return 1
  done
  [ "$(ls internal/dashboard/*_templ.go | wc -l)" = "$(ls "$copy"/*_templ.go | wc -l)" ]
}
step "generated pages are fresh" fresh_pages
step "Go files are formatted" gofmt -l .
step "go vet" go vet ./...
step "go vet, bench" go -C bench vet ./...
step "go vet, bench/peers" go -C bench/peers vet ./...
step "go vet, sdk/go" go -C sdk/go vet -tags server ./...
step "go vet, sdk/go/frameworks" go -C sdk/go/frameworks vet ./...
step "go vet, terraform" go -C terraform vet -tags server,terraform ./...
step "go vet, tests/container" go -C tests/container vet ./...
step "go vet, tests/faults" go -C tests/faults vet ./...
step "go vet, tests/stripe" go -C tests/stripe vet ./...
step "go vet, sdk/go/weirotel" go -C sdk/go/weirotel vet ./...
step "go vet, sdk/go/weirgrpc" go -C sdk/go/weirgrpc vet ./...
step "modules are tidy" go mod tidy -diff
step "modules are tidy, bench" go -C bench mod tidy -diff
step "modules are tidy, bench/peers" go -C bench/peers mod tidy -diff
step "modules are tidy, sdk/go" go -C sdk/go mod tidy -diff
step "modules are tidy, sdk/go/frameworks" go -C sdk/go/frameworks mod tidy -diff
step "modules are tidy, sdk/go/weirotel" go -C sdk/go/weirotel mod tidy -diff
step "modules are tidy, sdk/go/weirgrpc" go -C sdk/go/weirgrpc mod tidy -diff
step "modules are tidy, terraform" go -C terraform mod tidy -diff
step "names to publish under agree" go run ./sdk/names -check
step "modules are tidy, tests/container" go -C tests/container mod tidy -diff
step "modules are tidy, tests/faults" go -C tests/faults mod tidy -diff
step "modules are tidy, tests/stripe" go -C tests/stripe mod tidy -diff
step "scripts parse" bash -n scripts/dev.sh scripts/queries.sh scripts/verify.sh scripts/microbench.sh scripts/fuzz.sh scripts/sbom.sh scripts/terraform.sh web/vendor.sh tests/browser/vendor.sh .ci/run
exit $failed
