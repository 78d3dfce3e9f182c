package route

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Of the segments behind the longest template, one is kept, which does not match. Before, a path of
// 1790 segments took half a millisecond.
func TestLongPathsAreCut(t *testing.T) {
	r := New("edge")
	r.Subject, r.NoSubject = []string{"header:X-User"}, AllowNoSubject
	r.Resources = []Template{{Match: "/a/{id}", Resource: "two"}, {Match: "/b/{path...}", Resource: "rest"}}
	c, err := Compile(r)
	require.NoError(t, err)
	resource := func(path string) string {
		in := &Input{Method: []byte("GET"), Target: []byte(path)}
		d := c.Decide(in)
		require.LessOrEqual(t, len(in.segments), 3)
		return d.Resource
	}
	long := strings.Repeat("/a", 1000)
	require.Equal(t, "two", resource("/a/a"))
	require.Equal(t, r.DefaultResource, resource(long))
	require.Equal(t, "rest", resource("/b"+long))
	for _, dots := range []string{"/..", "/%2e", "/.%2E", "/.;x"} {
		in := &Input{Method: []byte("GET"), Target: []byte(long + dots)}
		found, ok := c.template(in, in.Method, in.Target)
		require.False(t, ok, dots)
		require.Equal(t, noTemplate, found)
	}
}
