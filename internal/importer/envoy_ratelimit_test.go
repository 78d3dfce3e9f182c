package importer

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/route"
)

func read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	return data
}

func imported(t *testing.T, text string) (*Document, []Note) {
	t.Helper()
	document, notes, err := EnvoyRateLimit([]byte(text))
	require.NoError(t, err)
	return document, notes
}

func matches(d *Document) (all []string) {
	for _, t := range d.Routes[0].Resources {
		all = append(all, t.Match)
	}
	return all
}

// A limit becomes a rule for its own resource, and its place in the tree becomes a template.
func TestImport(t *testing.T) {
	d, notes := imported(t, `
domain: Edge_Proxy
descriptors:
  - key: tier
    value: free
    shadow_mode: true
    rate_limit: {unit: Minute, requests_per_unit: 10}
    descriptors:
      - key: user
        rate_limit: {unit: day, requests_per_unit: 0, name: none}
  - key: tier
    rate_limit: {unlimited: true}
  - key: file
    value: img/*
    share_threshold: true
    rate_limit: {unit: hour, requests_per_unit: 3}
`)
	text, err := d.YAML()
	require.NoError(t, err)
	require.Equal(t, `format: 1
rules:
  - slug: edge-proxy-tier-free
    name: 'Edge_Proxy: tier=free'
    resource: Edge_Proxy:tier=free
    algorithm: fixed_window
    limit: 10
    window: 1m
    by: [subject]
    mode: shadow
  - slug: edge-proxy-tier-free-user
    name: 'Edge_Proxy: tier=free > user (none)'
    resource: Edge_Proxy:tier=free&user
    algorithm: fixed_window
    limit: 1
    window: 1d
    by: [subject]
    mode: enforce
  - slug: edge-proxy-file-img
    name: 'Edge_Proxy: file=img/*'
    resource: Edge_Proxy:file=img/{}
    algorithm: fixed_window
    limit: 3
    window: 1h
    by: []
    mode: enforce
routes:
  - slug: edge-proxy
    name: Edge_Proxy
    subject: [descriptor]
    no_subject: allow
    resources:
      - match: ?tier=free
        resource: Edge_Proxy:tier=free
      - match: ?tier=free&user={}
        resource: Edge_Proxy:tier=free&user
        cost: 2
      - match: ?tier=free&...
        resource: Edge_Proxy
      - match: ?file=img/{}
        resource: Edge_Proxy:file=img/{}
      - match: ?tier={}
        resource: Edge_Proxy:tier
    default_resource: Edge_Proxy
`, string(text))
	require.Equal(t, []Note{{Text: `the domain "Edge_Proxy" is decided by the route "edge-proxy"`}}, notes)
}

// The report names each difference in behavior, with its position.
func TestReport(t *testing.T) {
	d, notes := imported(t, `
domain: edge
descriptors:
  - key: a
    quota_mode: true
    detailed_metric: true
    rate_limit: {unit: second, requests_per_unit: 1, replaces: [{name: missing}]}
  - key: b*
    rate_limit: {unit: second, requests_per_unit: 1}
  - key: c
    shadow_mode: true
`)
	var lines []string
	for _, n := range notes {
		lines = append(lines, n.String())
	}
	require.Equal(t, []string{
		`a: replaces "missing", but no limit of the file has this name`,
		"a: quota_mode has no equivalent: the limit denies",
		"a: detailed_metric and value_to_metric are not needed: usage shows each resource, and its busiest subjects",
		"b*: a * at the end of a key has no equivalent: the key is used literally",
		"c: shadow_mode without a limit has no effect",
	}, lines)
	require.Equal(t, []string{"?a={}", "?b%2a={}"}, matches(d))
}

// A file that envoyproxy/ratelimit would refuse, or that Weir cannot represent, is refused
// completely.
func TestRefused(t *testing.T) {
	for text, says := range map[string]string{
		"":                         "the file is empty",
		"- edge":                   "is not a configuration",
		"domain: edge\nlimits: []": "limits",
		"descriptors: []":          "no domain",
		"domain: edge\ndescriptors: [{value: x}]":                                                    "has no key",
		"domain: edge\ndescriptors: [{key: a, rate_limit: {unit: fortnight, requests_per_unit: 1}}]": "fortnight",
		"domain: edge\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: -1}}]":      "negative",
		"domain: edge\n---\ndomain: other":                                                           "more than one document",
		"domain: edge\ndescriptors: [{key: a, value: b}, {key: c}, {key: a, value: b}]":              "a=b: the descriptor appears twice",
	} {
		_, _, err := EnvoyRateLimit([]byte(text))
		require.ErrorContains(t, err, says, text)
		require.NotContains(t, err.Error(), "importer.", "a name of a Go type: %s", text)
	}
	many := "domain: edge\ndescriptors:\n"
	for i := range route.MaxTemplates + 1 {
		many += "  - {key: k, value: v" + string(rune('a'+i%26)) + string(rune('a'+i/26)) + ", rate_limit: {unit: day, requests_per_unit: 1}}\n"
	}
	_, _, err := EnvoyRateLimit([]byte(many))
	require.ErrorContains(t, err, "101 templates")
}

// The examples of envoyproxy/ratelimit can be imported, and Weir accepts every document.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "*.yaml"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 9)
	for _, file := range files {
		d, _, err := EnvoyRateLimit(read(t, filepath.Base(file)))
		require.NoError(t, err, file)
		require.NotEmpty(t, d.Routes[0].Resources, file)
	}
}
