// Package wording checks how the project speaks: standard technical English, with the terms of
// docs/glossary.md.
//
// Its test reads every text of the repository (code, comments, pages, scripts, SQL) and reports
// phrases that have a plain replacement, identifiers of Go and Lua that were renamed, and comment
// lines that are wider than 100 columns. In documents and on pages it also reports words that the
// glossary replaces and that code uses in another sense. Each finding names the file, the line, the phrase and the replacement:
//
//	internal/engine/lease.go:12: "taken ahead": write "prefetched"
//
// phrases_test.go has the lists. To forbid a phrase, add it there. No directory is exempt. If one
// must be for a while, exemptions_test.go names it with the phrase.
package wording
