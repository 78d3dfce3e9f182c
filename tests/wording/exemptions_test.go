package wording

import "strings"

// An exemption is a phrase that a directory, or a file, still has.
type exemption struct{ folder, what string }

// exemptions are the phrases, identifiers and wide comments that directories and files still have.
// Remove them as they are cleaned; add none.
var exemptions = map[string][]string{
	"internal/dashboard": {
		"all the same",
		"anew",
		"are away",
		"as much again",
		"be whole",
		"but for",
		"gives back",
		"go on",
		"goes on",
		"half as much again",
		"hear of",
		"hears of",
		"is away",
		"lately",
		"stranger",
		"strangers",
		"taken ahead",
		"told apart",
		"where there is none",
		"while one types",
		"while the counters",
		"whoever",
		"worked out",
	},
}

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
