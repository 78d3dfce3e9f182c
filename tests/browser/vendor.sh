#!/usr/bin/env bash
# Copies into testdata/ the files that package-lock.json pins, and writes their checksums.
# Node.js is needed here alone: what tests use is the committed copy.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
command -v npm >/dev/null || { echo 'missing: npm' >&2; exit 1; }
npm ci --ignore-scripts --no-audit --no-fund
for file in axe.min.js LICENSE LICENSE-3RD-PARTY.txt; do
  install -D -m 644 "node_modules/axe-core/$file" "testdata/axe-core/$file"
done
rm -rf node_modules
find testdata/axe-core -type f | LC_ALL=C sort | xargs sha256sum >vendor.sha256
