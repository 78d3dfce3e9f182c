#!/usr/bin/env bash
# Copies into static/vendor the files that package-lock.json pins, and writes their checksums.
# Only this script needs Node.js: builds and tests use the committed copy.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
command -v npm >/dev/null || { echo 'missing: npm' >&2; exit 1; }
npm ci --ignore-scripts --no-audit --no-fund
rm -rf static/vendor
copy() { # $1: package; the rest: its files
  local package=$1 file
  shift
  mkdir -p "static/vendor/${package##*/}"
  for file in "$@"; do
    install -D -m 644 "node_modules/$package/$file" "static/vendor/${package##*/}/${file#dist/}"
  done
}
copy htmx.org dist/htmx.min.js LICENSE
copy htmx-ext-sse dist/sse.min.js LICENSE
copy @github/combobox-nav dist/index.js LICENSE
copy swagger-ui-dist swagger-ui-bundle.js swagger-ui-bundle.js.LICENSE.txt swagger-ui.css LICENSE NOTICE
copy @fontsource-variable/inter files/inter-latin-wght-normal.woff2 files/inter-latin-ext-wght-normal.woff2 LICENSE
# Only the icons that icons.go names, so that no page carries one that it cannot show.
mapfile -t icons < <(sed -n 's/^\t"\([a-z0-9-]*\)",.*/icons\/\1.svg/p' icons.go)
copy lucide-static "${icons[@]}" LICENSE
find static/vendor -type f | LC_ALL=C sort | xargs sha256sum >vendor.sha256
