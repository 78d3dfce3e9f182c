package dashboard

import (
	"fmt"
	"maps"
	"math"

	"github.com/a-h/templ"

	"weir/internal/limit"
)

// The attributes below tell forms.js what the browser can check, with the messages of the server.

var (
	wholeNumber  = limit.MustBe("a whole number, such as 100")
	wholeLength  = limit.MustBe("a whole number, such as 1")
	outsideBurst = limit.MustBe("a whole number from 1 to %d", limit.MaxLimit)
	outsideQuota = limit.MustBe("a number from 1 to %s", grouped(noQuota-1))
)

// slugAttrs are the attributes of an input for a slug, and others.
func slugAttrs(others templ.Attributes) templ.Attributes {
	attrs := templ.Attributes{
		"autocomplete": "off", "spellcheck": "false", "maxlength": fmt.Sprint(limit.MaxSlugBytes),
		"pattern": `[a-z0-9\-]+`, "data-pattern": sentence(limit.InvalidSlug.Message),
	}
	maps.Copy(attrs, others)
	return attrs
}

// wholeAttrs are the attributes of an input for a whole number between two bounds, and others.
func wholeAttrs(least, most int64, outside *limit.Problem, others templ.Attributes) templ.Attributes {
	attrs := templ.Attributes{
		"inputmode": "numeric", "autocomplete": "off", "data-whole": sentence(wholeNumber.Message),
		"data-least": itoa(least), "data-most": itoa(most), "data-range": sentence(outside.Message),
	}
	maps.Copy(attrs, others)
	return attrs
}

// lengthAttrs are the attributes of an input for the number of a length of time.
func lengthAttrs() templ.Attributes {
	return wholeAttrs(1, math.MaxInt32, wholeLength, templ.Attributes{"data-whole": sentence(wholeLength.Message)})
}

// limitRangeOf are the attributes of the choice of an algorithm, which has its own range of limits.
func limitRangeOf(a limit.Algorithm) templ.Attributes {
	return templ.Attributes{"data-limit-most": itoa(a.MaxLimit()), "data-limit-range": sentence(a.OutsideLimit().Message)}
}
