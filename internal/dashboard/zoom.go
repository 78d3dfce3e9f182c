package dashboard

import (
	"net/url"
	"strings"
)

// A script zooms into a part of a chart: it opens the address of Zoom with from and to. The
// parameter "full" keeps the period from which somebody zoomed, so that a link leads back to it.

// zoomedFrom is the parameter.
const zoomedFrom = "full"

// boundsBetween separates the two times of a period that has no name.
const boundsBetween = "~"

// zoomParameters are those of an address for a part of the period, without from and to.
func zoomParameters(values url.Values) url.Values {
	out := copied(values)
	if out.Get(zoomedFrom) == "" {
		full := out.Get("period")
		if full == custom {
			full = out.Get("from") + boundsBetween + out.Get("to")
		}
		out.Set(zoomedFrom, full)
	}
	for _, name := range []string{"from", "to", "grain", "format"} {
		out.Del(name)
	}
	out.Set("period", custom)
	return out
}

// unzoomed returns the parameters of the period from which somebody zoomed; nil: nobody did.
func unzoomed(values url.Values) url.Values {
	full := values.Get(zoomedFrom)
	if full == "" {
		return nil
	}
	out := withBounds(values, "", "")
	out.Del("format")
	if from, to, ofBounds := strings.Cut(full, boundsBetween); ofBounds {
		out = withBounds(out, from, to)
		full = custom
	}
	out.Set("period", full)
	return out
}

// zoomAddress returns the usage page for a part of a period, without from and to.
func zoomAddress(values url.Values) string { return "/usage?" + zoomParameters(values).Encode() }

// zoomFrom is zoomAddress for the chart of another page, to which the link leads back.
func zoomFrom(page string, values url.Values) string {
	values.Set(zoomedFrom, page)
	return zoomAddress(values)
}

// unzoomedAddress returns the usage page of the period from which somebody zoomed; "": nobody did.
func unzoomedAddress(values url.Values) string {
	if full := values.Get(zoomedFrom); strings.HasPrefix(full, "/") {
		if localPath(full) == full {
			return full
		}
		return ""
	}
	if full := unzoomed(values); full != nil {
		return "/usage?" + full.Encode()
	}
	return ""
}

// otherScale returns an address with the other kind of scale.
func otherScale(path string, values url.Values, logarithmic bool) string {
	out := copied(values)
	out.Del("scale")
	if !logarithmic {
		out.Set("scale", scaleLog)
	}
	return withCursor(path, out, "")
}
