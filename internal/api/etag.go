package api

import (
	"strconv"
	"strings"

	"weir/internal/tenants"
)

// etagOf returns the entity tag of an object with a version.
func etagOf(version int64) string { return `"v` + strconv.FormatInt(version, 10) + `"` }

// parseMatch converts the If-Match headers of a request to the condition that the store checks in
// the transaction of the write. A well-formed tag that Weir did not create becomes a version that
// no object has, so it matches nothing.
func parseMatch(values []string) (tenants.Match, *Problem) {
	tags, any, ok := parseTags(values)
	if !ok {
		return tenants.Match{}, invalidHeader("If-Match", notTags)
	}
	m := tenants.Match{Any: any}
	for _, tag := range tags {
		m.Versions = append(m.Versions, versionOf(tag))
	}
	return m, nil
}

const noVersion int64 = -1

func versionOf(tag string) int64 {
	digits, ok := strings.CutPrefix(tag, `"v`)
	if !ok {
		return noVersion
	}
	n, err := strconv.ParseInt(strings.TrimSuffix(digits, `"`), 10, 64)
	if err != nil || etagOf(n) != tag {
		return noVersion
	}
	return n
}

// noneMatch reports whether If-None-Match of a GET contains the tag, so that the answer is 304.
func noneMatch(values []string, etag string) (bool, *Problem) {
	tags, any, ok := parseTags(values)
	if !ok {
		return false, invalidHeader("If-None-Match", notTags)
	}
	for _, tag := range tags {
		any = any || strings.TrimPrefix(tag, "W/") == etag
	}
	return any, nil
}

// maxTags is the maximum number of entity tags in the headers of a request.
const maxTags = 100

// parseTags parses a list of entity tags (RFC 9110 section 8.8.3), or *.
func parseTags(values []string) (tags []string, any, ok bool) {
	list := strings.Join(values, ",")
	if len(values) == 0 {
		return nil, false, true
	}
	if strings.Trim(list, " \t") == "*" {
		return nil, true, true
	}
	for {
		list = strings.TrimLeft(list, " \t,")
		if list == "" {
			return tags, false, len(tags) > 0
		}
		start := len("W/")
		if !strings.HasPrefix(list, "W/") {
			start = 0
		}
		if start >= len(list) || list[start] != '"' || len(tags) == maxTags {
			return nil, false, false
		}
		end := strings.IndexByte(list[start+1:], '"')
		if end < 0 {
			return nil, false, false
		}
		end += start + 2
		tags = append(tags, list[:end])
		list = strings.TrimLeft(list[end:], " \t")
		if list != "" && list[0] != ',' {
			return nil, false, false
		}
	}
}
