package wording

import "strings"

// An exemption is a phrase that a directory, or a file, still has.
type exemption struct{ folder, what string }

// exemptions are the phrases, identifiers and wide comments that directories and files still have.
// Remove them as they are cleaned; add none.
var exemptions = map[string][]string{}

// exemptionFor returns the exemption of a phrase in a file.
func exemptionFor(file, what string) (exemption, bool) {
	for _, e := range allExemptions() {
		if e.what == what && (file == e.folder || strings.HasPrefix(file, e.folder+"/")) {
			return e, true
		}
	}
	return exemption{}, false
}

func allExemptions() (out []exemption) {
	for folder, whats := range exemptions {
		for _, what := range whats {
			out = append(out, exemption{folder, what})
		}
	}
	return out
}
