package gateways

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	printTables   = flag.Bool("tables", false, "measure the latency that Weir adds, and print tables")
	builtPrograms = flag.String("built", "", "the directory of the programs that `make gateways` builds")
)

// A report has the figures of the tables of `make gateways`.
type report struct {
	mu       sync.Mutex
	failures map[string][2]int // by gateway and failure: the statuses with fail open and fail closed
	latency  []string
}

func (r *report) failure(recipe *recipe, what string, failOpen bool, status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failures == nil {
		r.failures = map[string][2]int{}
	}
	key := recipe.name + "\t" + what
	statuses := r.failures[key]
	statuses[map[bool]int{true: 0, false: 1}[failOpen]] = status
	r.failures[key] = statuses
}

// measured is the number of timed requests, after a tenth of that as warm-up.
const measured = 3000

// measure times requests through each gateway, alternating with and without Weir.
func (r *report) measure(t *testing.T, w *world) {
	for _, recipe := range recipes {
		if recipe.built && *builtPrograms == "" || recipe.route && recipe.routeToo {
			continue
		}
		t.Run("latency of "+recipe.name, func(t *testing.T) {
			g := startGateway(t, w, recipe, true, true)
			c := customer(t)
			times := map[string][]time.Duration{}
			for i := range measured + measured/10 {
				for _, address := range []string{g.plain, g.address} {
					subject := fmt.Sprintf("%s measured %d", recipe.name, i)
					from := time.Now()
					got := send(t, c, http.MethodGet, address, "/orders", "", "X-User", subject)
					if i >= measured/10 {
						times[address] = append(times[address], time.Since(from))
					}
					require.Equal(t, http.StatusOK, got.status)
				}
			}
			at := func(address string, share float64) float64 {
				slices.Sort(times[address])
				return float64(times[address][int(share*float64(measured))].Microseconds())
			}
			r.latency = append(r.latency, fmt.Sprintf("%s\t%.0f µs\t%.0f µs\t%+.0f µs\t%.0f µs\t%.0f µs\t%+.0f µs", recipe.name,
				at(g.plain, .5), at(g.address, .5), at(g.address, .5)-at(g.plain, .5),
				at(g.plain, .99), at(g.address, .99), at(g.address, .99)-at(g.plain, .99)))
		})
	}
}

func (r *report) print() {
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(out, "\nLatency of %d requests, one at a time, with a relay between gateway and Weir\n\n", measured)
	fmt.Fprintln(out, "gateway\tp50 without\tp50 with\tadded\tp99 without\tp99 with\tadded")
	for _, line := range r.latency {
		fmt.Fprintln(out, line)
	}
	whats := []string{"hangs", "is dead", "crashes", "answers late", "over quota", "wrong key"}
	fmt.Fprintln(out, "\nThe customer's status when Weir does not decide: fail open / fail closed")
	fmt.Fprintln(out, "\ngateway\t"+strings.Join(whats, "\t"))
	for _, recipe := range recipes {
		if _, ok := r.failures[recipe.name+"\thangs"]; !ok {
			continue
		}
		fmt.Fprint(out, recipe.name)
		for _, what := range whats {
			statuses := r.failures[recipe.name+"\t"+what]
			fmt.Fprintf(out, "\t%d / %d", statuses[0], statuses[1])
		}
		fmt.Fprintln(out)
	}
	_ = out.Flush()
}
