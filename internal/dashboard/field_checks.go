package dashboard

import (
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

// with returns attributes, and those of defaults that they do not have.
func with(attrs, defaults templ.Attributes) templ.Attributes {
	out := maps.Clone(defaults)
	maps.Copy(out, attrs)
	return out
}

// slugAttrs are the attributes of an input for a slug, and others.
func slugAttrs(others templ.Attributes) templ.Attributes {
	return with(others, templ.Attributes{
		"autocomplete": "off", "spellcheck": "false", "maxlength": itoa(limit.MaxSlugBytes),
		"pattern": `[a-z0-9\-]+`, "data-pattern": sentence(limit.InvalidSlug.Message),
	})
}

// wholeAttrs are the attributes of an input for a whole number between two bounds, and others.
func wholeAttrs(least, most int64, outside *limit.Problem, others templ.Attributes) templ.Attributes {
	return with(others, templ.Attributes{
		"inputmode": "numeric", "autocomplete": "off", "data-whole": sentence(wholeNumber.Message),
		"data-least": itoa(least), "data-most": itoa(most), "data-range": sentence(outside.Message),
	})
}

// lengthAttrs are the attributes of an input for the number of a length of time.
func lengthAttrs() templ.Attributes {
	return wholeAttrs(1, math.MaxInt32, wholeLength, templ.Attributes{"data-whole": sentence(wholeLength.Message)})
}

// limitRangeOf are the attributes of the choice of an algorithm, which has its own range of limits.
func limitRangeOf(a limit.Algorithm) templ.Attributes {
	return templ.Attributes{"data-limit-most": itoa(a.MaxLimit()), "data-limit-range": sentence(a.OutsideLimit().Message)}
}
