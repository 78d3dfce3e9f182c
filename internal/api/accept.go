package api

import (
	"net/http"
	"strings"
)

const (
	// maxAccept is the length of a header Accept from which on it is ignored. Those of browsers
	// have 200 bytes.
	maxAccept = 1 << 10
	// maxQuality is the length of a quality, such as 0.125.
	maxQuality = 5
)

// dropOddAccept removes a header Accept that the library which chooses the format of an answer
// cannot read, or only slowly: it panics for "a;,b", and parses each number as a float64.
func dropOddAccept(h http.Header) {
	given := h["Accept"]
	if len(given) > 0 && (len(given[0]) > maxAccept || !isPlainAccept(given[0])) {
		delete(h, "Accept")
	}
}

// isPlainAccept reports whether all parameters of the formats have a value, which is no number that
// takes long to parse.
func isPlainAccept(accept string) bool {
	for format := range strings.SplitSeq(accept, ",") {
		_, parameters, has := strings.Cut(format, ";")
		for has {
			var parameter string
			parameter, parameters, has = strings.Cut(parameters, ";")
			name, value, given := strings.Cut(strings.TrimSpace(parameter), "=")
			if !given || name == "" || value == "" {
				return false
			}
			if isNumeric := isDigit(value[0]) || strings.IndexByte("+-.", value[0]) >= 0; isNumeric && !isQuality(value) {
				return false
			}
		}
	}
	return true
}

func isQuality(value string) bool {
	return len(value) <= maxQuality && strings.Trim(value, "0123456789.") == ""
}
