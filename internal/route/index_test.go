package route

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// No path is compared with very many bytes of templates. Before, one call of Envoy compared its
// paths with 3 million segments.
func TestLongTemplatesAreIndexed(t *testing.T) {
	c, path := longRoute(t)
	compare := func(c *Compiled) (segments, bytes int) {
		for i := range c.templates {
			segments += len(c.templates[i].segments)
			for _, s := range c.templates[i].segments {
				bytes += len(s.literal)
			}
		}
		return segments, bytes
	}
	segments, _ := compare(c)
	require.Zero(t, segments)
	user := []string{"X-User: ada"}
	require.Equal(t, "default", asked{method: "GET", target: path, headers: user}.of(t, c).Resource)
	middle := len(path) / 4 * 2 // a slash
	for i := range MaxTemplates {
		for _, segment := range []string{fmt.Sprintf("/b%02d", i), fmt.Sprintf("/B%02d", i), fmt.Sprintf("//%%62%02d", i)} {
			d := asked{method: "GET", target: path[:middle] + segment + path[middle+2:] + ";x", headers: user}.of(t, c)
			require.Equal(t, fmt.Sprint("r", i), d.Resource)
		}
	}
	c = compiled(t, func(r *Route) {
		for i := range MaxTemplates {
			r.Resources = append(r.Resources, Template{Match: fmt.Sprintf("/%s%02d", strings.Repeat("a", MaxMatchBytes-3), i)})
		}
	})
	_, bytes := compare(c)
	require.Zero(t, bytes)
	c = compiled(t, func(r *Route) {
		r.Resources = []Template{{Match: "/a/b"}, {Match: "?a=" + strings.Repeat("b", MaxMatchBytes-3)}}
	})
	segments, _ = compare(c)
	require.Equal(t, 2, segments, "a short route has no index")
	require.Nil(t, c.index)
}

// An index finds the same template as comparing all of them in order.
func TestIndexFindsTheSameTemplates(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	found := map[int]int{}
	for range 300 {
		r := New("edge")
		r.Subject = []string{"ip"}
		seen := map[string]bool{}
		for range MaxTemplates {
			t := Template{Match: pick("", "", "GET ", "POST ", "HEAD ")}
			for n := random.IntN(6); n >= 0; n-- {
				t.Match += "/" + pick("a", "B", "c", strings.Repeat("long", 12), "{x}", "{y}")
			}
			t.Match += pick("", "", "/{rest...}")
			if random.IntN(10) == 0 {
				t.Match = "?a=" + pick("1", "2", "{}")
			}
			if p, err := parsePattern(t.Match); err == nil && !seen[p.text()] {
				seen[p.text()] = true
				r.Resources = append(r.Resources, t)
			}
		}
		indexed, err := Compile(r)
		require.NoError(t, err)
		require.NotNil(t, indexed.index)
		plain := &Compiled{Route: indexed.Route}
		for _, t := range r.Resources {
			p, _ := parsePattern(t.Match)
			plain.templates = append(plain.templates, template{pattern: p})
		}
		for range 100 {
			in := &Input{}
			for n := random.IntN(9); n > 0; n-- {
				in.segments = append(in.segments, []byte(pick("a", "A", "b", "c", "d", strings.Repeat("long", 12), strings.Repeat("long", 100))))
			}
			method := []byte(pick("GET", "get", "POST", "HEAD", "PUT"))
			want := plain.first(in, method)
			require.Equal(t, want, indexed.first(in, method), "%q %q", method, in.segments)
			require.Empty(t, in.text)
			found[want]++
		}
	}
	require.Greater(t, len(found), 50)
}

func TestIndexAllocatesNothing(t *testing.T) {
	c, path := longRoute(t)
	in := &Input{}
	method, target := []byte("GET"), []byte(strings.ToUpper(path))
	require.Zero(t, testing.AllocsPerRun(100, func() {
		in.Reset()
		in.Method, in.Target = method, target
		if _, ok := c.resource(in); !ok {
			panic("refused")
		}
	}))
}
