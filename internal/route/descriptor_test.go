package route

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

func entriesOf(keysAndValues ...string) (entries []Entry) {
	for i := 0; i < len(keysAndValues); i += 2 {
		entries = append(entries, Entry{[]byte(keysAndValues[i]), []byte(keysAndValues[i+1])})
	}
	return entries
}

func descriptorRoute(t *testing.T, subject []string, templates ...Template) *Compiled {
	t.Helper()
	r := New("edge")
	r.Subject, r.Resources, r.NoSubject = subject, templates, AllowNoSubject
	c, err := Compile(r)
	require.NoError(t, err)
	return c
}

func (c *Compiled) described(entries []Entry) Decision {
	in := &Input{Entries: entries}
	for _, e := range entries {
		c.Take(in, e.Key, e.Value)
	}
	return c.Decide(in)
}

// The first template that matches all entries of a descriptor sets the resource.
func TestDescriptorTemplates(t *testing.T) {
	c := descriptorRoute(t, []string{DescriptorSource},
		Template{Match: "?user=vip", Resource: "vip"}, Template{Match: "?user={}", Resource: "user"},
		Template{Match: "?path=/api/{}&user={}", Resource: "api"}, Template{Match: "?a%26b=c%3d%7B%20", Resource: "escaped"},
		Template{Match: "?open={}&...", Resource: "open"}, Template{Match: "GET /orders/{id}", Resource: "order"},
	)
	for _, row := range []struct {
		entries []Entry
		want    string
	}{
		{entriesOf("user", "vip"), "vip"},
		{entriesOf("user", "vip2"), "user"},
		{entriesOf("user", ""), "user"},
		{entriesOf("User", "x"), "default"},
		{entriesOf("user", "x", "more", "y"), "default"},
		{entriesOf("path", "/api/orders", "user", "x"), "api"},
		{entriesOf("path", "/other", "user", "x"), "default"},
		{entriesOf("user", "x", "path", "/api/orders"), "default"},
		{entriesOf("a&b", "c={ "), "escaped"},
		{entriesOf("open", "x"), "open"},
		{entriesOf("open", "x", "y", "z", "y", "z"), "open"},
		{nil, "default"},
	} {
		d := c.described(row.entries)
		require.Equal(t, row.want, d.Resource, "%q", row.entries)
	}
	in := &Input{Method: []byte("GET"), Target: []byte("/orders/7"), Entries: entriesOf("path", "/orders/7")}
	require.Equal(t, "order", c.Decide(in).Resource, "if no template matches the entries, the path decides")
}

// The sources of a route read entries like headers.
func TestDescriptorSources(t *testing.T) {
	c := descriptorRoute(t, []string{"header:X-User", "cookie:id"})
	require.Equal(t, "ada", string(c.described(entriesOf("x-user", "ada")).Subject))
	require.Equal(t, Allow, c.described(entriesOf("other", "ada")).Verdict)
	require.Equal(t, SubjectInvalid, c.described(entriesOf("x-user", "a", "x-user", "b")).Code)
}

// The text of a descriptor is always a valid subject, and different descriptors have different
// texts.
func TestDescriptorText(t *testing.T) {
	c := descriptorRoute(t, []string{DescriptorSource})
	seen := map[string]bool{}
	for _, entries := range [][]Entry{
		entriesOf("a", "b", "c", "d"), entriesOf("a", "b&c=d"), entriesOf("a", "b", "c%", "d"), entriesOf("a", ""), entriesOf("a=", ""),
		entriesOf("a", "\xff"), entriesOf("a", "%ff"), entriesOf("a", "\x00"), entriesOf("a", "ü"), entriesOf("a", "*"),
		entriesOf("a", strings.Repeat("x", 300)), entriesOf("a", strings.Repeat("x", 301)),
	} {
		d := c.described(entries)
		require.Equal(t, Check, d.Verdict)
		require.True(t, usable(d.Subject), "%q", d.Subject)
		require.False(t, seen[string(d.Subject)], "%q", d.Subject)
		seen[string(d.Subject)] = true
	}
	require.Equal(t, "a=b&c=d", string(c.described(entriesOf("a", "b", "c", "d")).Subject))
	require.Equal(t, Allow, c.described(nil).Verdict)
	in := &Input{}
	require.Equal(t, Allow, c.Decide(in).Verdict, "a request over HTTP has no descriptor")
}

// The text is built once, however many attributes of a route have this source. Before, 4 KB of a
// call took a millisecond.
func TestDescriptorTextIsBuiltOnce(t *testing.T) {
	r := New("edge")
	r.Subject, r.Attributes = []string{DescriptorSource}, map[string]string{}
	for i := range limit.MaxAttributes {
		r.Attributes[string(rune('a'+i))] = DescriptorSource
	}
	c, err := Compile(r)
	require.NoError(t, err)
	in := &Input{Entries: entriesOf("a", "b", "c", "d")}
	d := c.Decide(in)
	require.Len(t, d.Attributes, limit.MaxAttributes)
	require.Equal(t, "a=b&c=d", string(d.Attributes[limit.MaxAttributes-1].Value))
	require.Equal(t, "a=b&c=d", string(in.text))
	in.Reset()
	in.Entries = entriesOf("e", "f")
	require.Equal(t, "e=f", string(c.Decide(in).Subject), "of the next descriptor")
}

func TestReplaces(t *testing.T) {
	c := descriptorRoute(t, []string{DescriptorSource},
		Template{Match: "?user=vip replaces base, other limit", Resource: "vip"}, Template{Match: "?user={}", Resource: "base"})
	require.Equal(t, []string{"base", "other limit"}, c.Replaces("vip"))
	require.Empty(t, c.Replaces("base"))
	require.Empty(t, c.Replaces("none"))
	require.Equal(t, "vip", c.described(entriesOf("user", "vip")).Resource)
}

// An invalid template is refused with an error that describes a valid one.
func TestDescriptorTemplatesRefused(t *testing.T) {
	for match, says := range map[string]string{
		"?":                                      "an entry is KEY=VALUE",
		"?user":                                  "an entry is KEY=VALUE",
		"?=x":                                    "an entry is KEY=VALUE",
		"?user={id}":                             "an entry is KEY=VALUE",
		"?user={}x":                              "an entry is KEY=VALUE",
		"?...":                                   "an entry is KEY=VALUE",
		"?a=b&...&c=d":                           "an entry is KEY=VALUE",
		"?user=%4":                               "hexadecimal",
		"?user=x replaces ":                      "replaces the resource",
		"?" + strings.Repeat("a=b&", 16) + "a=b": "at most 16 entries",
	} {
		r := New("edge")
		r.Subject, r.Resources = []string{DescriptorSource}, []Template{{Match: match, Resource: "r"}}
		errs := r.Validate()
		require.NotEmpty(t, errs, match)
		require.Contains(t, errs[0].Message, says, match)
	}
	r := New("edge")
	r.Subject = []string{DescriptorSource}
	r.Resources = []Template{{Match: "?user=%61", Resource: "a"}, {Match: "?user=a", Resource: "b"}}
	require.NotEmpty(t, r.Validate(), "both match the same entries")
}

func TestDomainSlug(t *testing.T) {
	for domain, slug := range map[string]string{"edge": "edge", "mongo_cps": "mongo-cps", "A.b/c": "a-b-c", strings.Repeat("x", 70): strings.Repeat("x", 63)} {
		require.Equal(t, slug, string(DomainSlug(nil, []byte(domain))))
	}
}
