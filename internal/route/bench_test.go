package route

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"weir/internal/limit"
)

// longRoute has as many templates as possible, of as many segments as possible. They differ only in
// the middle.
func longRoute(t testing.TB) (c *Compiled, path string) {
	const segments = MaxMatchBytes/2 - 2
	return compiled(t, func(r *Route) {
		for i := range MaxTemplates {
			parts := strings.Split(strings.Repeat("a", segments), "")
			parts[segments/2] = fmt.Sprintf("b%02d", i)
			r.Resources = append(r.Resources, Template{Match: "/" + strings.Join(parts, "/"), Resource: fmt.Sprint("r", i)})
		}
	}), strings.Repeat("/a", segments)
}

// BenchmarkPath decides requests by their paths: a route as most are, one with many templates, and
// one whose templates are as long as possible, with paths that are read in each of the four ways.
func BenchmarkPath(b *testing.B) {
	few := compiled(b, func(r *Route) {
		for _, match := range strings.Fields("/health /users /users/{id} /users/{id}/orders /orders /orders/{id} /orders/{id}/items /search /files/{path...} /admin/{path...}") {
			r.Resources = append(r.Resources, Template{Match: "GET " + match}, Template{Match: "POST " + match})
		}
	})
	many := compiled(b, func(r *Route) {
		for i := range MaxTemplates / 2 {
			match := fmt.Sprintf("/v1/things%d/{id}/parts", i)
			r.Resources = append(r.Resources, Template{Match: "GET " + match}, Template{Match: "POST " + match})
		}
	})
	long, path := longRoute(b)
	for _, bench := range []struct {
		name, path string
		route      *Compiled
	}{
		{"few", "/orders/42/items?page=2", few}, {"many", "/v1/things30/42/parts?page=2", many}, {"missing", "/v1/other/42/parts", many},
		{"long", path, long}, {"four_ways", path + `;x\`, long},
	} {
		b.Run(bench.name, func(b *testing.B) {
			in := &Input{}
			names := [][]byte{[]byte("x-forwarded-method"), []byte("x-forwarded-uri"), []byte("x-user")}
			values := [][]byte{[]byte("POST"), []byte(bench.path), []byte("ada")}
			b.ReportAllocs()
			for b.Loop() {
				in.Reset()
				for i := range names {
					bench.route.Take(in, names[i], values[i])
				}
				if bench.route.Decide(in).Verdict != Check {
					b.Fatal("refused")
				}
			}
		})
	}
}

// BenchmarkCookies decides requests by their cookies: a route that reads one of five, and one that
// reads as many as possible, of 16 KiB.
func BenchmarkCookies(b *testing.B) {
	one := compiled(b, func(r *Route) { r.Subject = []string{"cookie:session"} })
	most := compiled(b, func(r *Route) {
		r.Subject, r.Attributes = []string{"header:X-User"}, map[string]string{}
		for i := range MaxSources - 1 {
			r.Subject = slices.Insert(r.Subject, 0, "cookie:s"+strconv.Itoa(i))
		}
		for i := range limit.MaxAttributes {
			r.Attributes["n"+strconv.Itoa(i)] = "cookie:k" + strconv.Itoa(i)
		}
	})
	for _, bench := range []struct {
		name, cookies string
		route         *Compiled
	}{
		{"one", "theme=dark; lang=en; session=5f1b0b7c; consent=1; _ga=GA1.2.3", one},
		{"semicolons", strings.Repeat(";", 16<<10), most}, {"names", strings.Repeat("a;", 8<<10), most}, {"values", strings.Repeat("k15=%41;", 2<<10), most},
	} {
		b.Run(bench.name, func(b *testing.B) {
			in := &Input{}
			cookie, cookies, user, ada := []byte("cookie"), []byte(bench.cookies), []byte("x-user"), []byte("ada")
			b.ReportAllocs()
			for b.Loop() {
				in.Reset()
				bench.route.Take(in, cookie, cookies)
				bench.route.Take(in, user, ada)
				if bench.route.Decide(in).Verdict != Check {
					b.Fatal("refused")
				}
			}
		})
	}
}
