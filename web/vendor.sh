#!/usr/bin/env bash
# Copies into static/vendor the files that package-lock.json pins, and writes their checksums.
# Node.js is needed here alone: what is built and tested is the committed copy.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
command -v npm >/dev/null || { echo 'missing: npm' >&2; exit 1; }
npm ci --ignore-scripts --no-audit --no-fund
rm -rf static/vendor
copy() { # $1: package; the rest: its files
  local package=$1 file
  shift
  mkdir -p "static/vendor/$package"
  for file in "$@"; do
    install -m 644 "node_modules/$package/$file" "static/vendor/$package/${file#dist/}"
  done
}
copy htmx.org dist/htmx.min.js LICENSE
copy htmx-ext-sse dist/sse.min.js LICENSE
copy uplot dist/uPlot.iife.min.js dist/uPlot.min.css LICENSE
copy swagger-ui-dist swagger-ui-bundle.js swagger-ui-bundle.js.LICENSE.txt swagger-ui.css LICENSE NOTICE
find static/vendor -type f | LC_ALL=C sort | xargs sha256sum >vendor.sha256
