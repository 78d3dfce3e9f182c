#!/usr/bin/env bash
# Prints the path of the Terraform or OpenTofu for tests of the provider: the program that
# WEIR_TEST_TERRAFORM names, or an installed one, or OpenTofu, which is then built once into
# .dev/tools. The build takes several minutes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ -n "${WEIR_TEST_TERRAFORM:-}" ]; then
  command -v "$WEIR_TEST_TERRAFORM" && exit
  echo "terraform: WEIR_TEST_TERRAFORM names no program: $WEIR_TEST_TERRAFORM" >&2
  exit 1
fi
command -v terraform || command -v tofu && exit
tofu=$PWD/.dev/tools/tofu
if [ ! -x "$tofu" ] || [ tools/opentofu.mod -nt "$tofu" ]; then
  echo 'terraform: neither Terraform nor OpenTofu is installed: building OpenTofu, which takes several minutes' >&2
  mkdir -p .dev/tools
  CGO_ENABLED=0 go build -modfile=tools/opentofu.mod -o "$tofu.new" github.com/opentofu/opentofu/cmd/tofu || {
    echo 'terraform: the build failed. Install Terraform or OpenTofu, 1.11 or newer, or set WEIR_TEST_TERRAFORM to its path' >&2
    exit 1
  }
  mv "$tofu.new" "$tofu"
fi
echo "$tofu"
