// Package wording checks how the project speaks: standard technical English, with the terms of
// docs/glossary.md.
//
// Its test reads every text of the repository (code, comments, pages, scripts, SQL) and reports
// phrases that have a plain replacement, identifiers that were renamed, and comment lines that are
// wider than 100 columns. Each finding names the file, the line, the phrase and the replacement:
//
//	internal/engine/lease.go:12: "taken ahead": write "prefetched"
//
// phrases_test.go has the list. To forbid a phrase, add it there. exemptions_test.go lists the
// directories that still have some of the phrases: remove an exemption once its directory is clean.
package wording
