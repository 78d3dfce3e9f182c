#!/usr/bin/env bash
# Writes a software bill of materials (CycloneDX 1.6, JSON) beside each binary: bin/server.cdx.json
# and bin/weir.cdx.json. It lists every module in the binary with its version, hash and licence. Fails
# if a module that the binary reports itself is missing, or has no licence.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for name in server weir; do
  CGO_ENABLED=0 go build -trimpath -o "bin/$name" "./cmd/$name"
  CGO_ENABLED=0 go tool -modfile=tools/cyclonedx.mod cyclonedx-gomod app -json -licenses -assert-licenses -std \
    -noserial -notimestamp -output "bin/$name.cdx.json" -main "cmd/$name" . 2>"bin/$name.cdx.log" || { cat "bin/$name.cdx.log" >&2; exit 1; }
  rm "bin/$name.cdx.log"
  count=0
  while read -r module version; do
    grep -q "\"purl\": \"pkg:golang/$module@$version[?\"]" "bin/$name.cdx.json" ||
      { echo "make sbom: $module $version is in bin/$name and not in bin/$name.cdx.json" >&2; exit 1; }
    count=$((count + 1))
  done < <(go version -m "bin/$name" | awk '$1 == "dep" { print $2, $3 }')
  licences=$(grep -c '"licenses": \[' "bin/$name.cdx.json")
  [ "$licences" -ge "$count" ] || { echo "make sbom: of $count modules in bin/$name, only $licences have a licence" >&2; exit 1; }
  echo "bin/$name.cdx.json: $count modules and the standard library"
done
