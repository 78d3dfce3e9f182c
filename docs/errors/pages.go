// Package errorpages holds the pages that explain the codes of problem documents, one a code.
package errorpages

import "embed"

// Pages are the files CODE.md, the code in lower case with hyphens.
//
//go:embed *.md
var Pages embed.FS
