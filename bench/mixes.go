package main

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"weir/bench/load"
)

// cell is one measurement: a row of a table.
type cell struct {
	name     string
	server   string
	protocol load.Protocol
	traffic  *load.Traffic
	checks   int   // per request
	rate     int64 // requests per second of an open loop; 0 for a closed loop
	share    int64 // n if rate is 1/n of Weir's capacity, which is known after a closed loop; or 0
	denied   bool  // whether the checks should be denied
	base     bool  // whether the cells after it are compared with it
	leasing  *leasing
}

// A leasing cell has no traffic: a client with leases in the process of the driver decides checks
// of one subject.
type leasing struct {
	tenant  *tenant
	callers int
}

// group is a table: cells that are measured one after the other in each round, beginning with the
// bare server.
type group struct {
	name  string // on the command line
	title string
	cells []cell
}

const (
	subjects     = 10_000
	resource     = "orders:create"
	generous     = int64(100_000_000)
	tight        = int64(100)
	seed         = 1
	batchRequest = 2000 // number of different batches
)

var algorithms = []string{
	"sliding_window_counter", "sliding_window_log", "sliding_window_buckets", "fixed_window",
	"fixed_window_first_hit", "token_bucket", "leaky_bucket", "leaky_bucket_queue",
}

// oneRule returns a rule of this algorithm with a limit that is never reached.
func oneRule(algorithm string) rule {
	r := rule{Slug: "requests", Algorithm: algorithm, Limit: generous, Window: "1m"}
	switch algorithm {
	case "sliding_window_log":
		r.Limit = 10_000 // the maximum of a log
	case "sliding_window_buckets":
		r.Precision = "1s"
	}
	return r
}

// manyRules returns n rules that all match, counted per subject.
func manyRules(n int) []rule {
	rules := make([]rule, n)
	for i := range rules {
		rules[i] = oneRule(algorithms[0])
		rules[i].Slug, rules[i].Window = fmt.Sprintf("requests-%d", i+1), fmt.Sprintf("%dm", i+1)
	}
	return rules
}

// cast has the tenants of a run, named by their use.
type cast struct {
	plain, denied, three, ten *tenant
	leased                    *tenant
	billed                    []*tenant
	algorithm                 map[string]*tenant
	sharded                   []*tenant
	crowd                     crowd
}

func newCast(o options) *cast {
	c := &cast{
		crowd:     newCrowd(o.tenants),
		plain:     &tenant{slug: "one-rule", rules: []rule{oneRule(algorithms[0])}},
		denied:    &tenant{slug: "denied", rules: []rule{{Slug: "requests", Algorithm: algorithms[0], Limit: tight, Window: "1h"}}},
		three:     &tenant{slug: "three-rules", rules: manyRules(3)},
		ten:       &tenant{slug: "ten-rules", rules: manyRules(10)},
		algorithm: map[string]*tenant{},
	}
	leased := oneRule(algorithms[0])
	leased.Consistency = "leased"
	c.leased = &tenant{slug: "leased", rules: []rule{leased}}
	for i, a := range algorithms {
		c.algorithm[a] = &tenant{slug: fmt.Sprintf("algorithm-%d", i+1), rules: []rule{oneRule(a)}}
	}
	for _, b := range billedRules {
		c.billed = append(c.billed, &tenant{slug: b.slug, rules: []rule{b.rule}})
	}
	for i := range shardTenants {
		c.sharded = append(c.sharded, &tenant{slug: fmt.Sprintf("sharded-%d", i+1), rules: []rule{oneRule(algorithms[0])}})
	}
	return c
}

func (c *cast) all() []*tenant {
	all := []*tenant{c.plain, c.denied, c.three, c.ten, c.leased}
	for _, a := range algorithms {
		all = append(all, c.algorithm[a])
	}
	return append(append(all, c.billed...), c.sharded...)
}

// leasedHot is the name of a row that has a goal.
const leasedHot = "one hot subject, leased"

func subject(i int) string { return fmt.Sprintf("user_%05d", i) }

func checkBody(subject string) string {
	return `{"subject":"` + subject + `","resource":"` + resource + `","cost":1}`
}

func checkRequest(key, subject string) load.Request {
	return load.Request{Path: "/v1/check", Key: key, Body: []byte(checkBody(subject))}
}

// spread returns one check of each subject.
func spread(t *tenant, choice load.Choice) *load.Traffic { return few(t, subjects, choice) }

// few returns one check of each of the first n subjects.
func few(t *tenant, n int, choice load.Choice) *load.Traffic {
	requests := make([]load.Request, n)
	for i := range requests {
		requests[i] = checkRequest(t.key, subject(i))
	}
	return load.NewTraffic(requests, choice, seed)
}

// hot returns checks of one subject. Its name selects the limit in the peers.
func hot(t *tenant, subject string) *load.Traffic {
	return load.NewTraffic([]load.Request{checkRequest(t.key, subject)}, load.Uniform, seed)
}

// emptyName is the row that shows the cost of net/http itself.
const emptyName = "empty net/http handler"

func empty() *load.Traffic {
	return load.NewTraffic([]load.Request{{Path: "/empty", Body: []byte(checkBody(subject(0)))}}, load.Uniform, seed)
}

// acrossTenants spreads requests, at least as many as there are subjects, evenly over tenants.
func acrossTenants(tenants []*tenant) *load.Traffic {
	requests := make([]load.Request, max(subjects, len(tenants)))
	for i := range requests {
		requests[i] = checkRequest(tenants[i%len(tenants)].key, subject(i%subjects))
	}
	return load.NewTraffic(requests, load.Uniform, seed)
}

// batches returns requests of n checks each, of random subjects.
func batches(t *tenant, n int) *load.Traffic {
	random := rand.New(rand.NewPCG(seed, uint64(n)))
	requests := make([]load.Request, batchRequest)
	for i := range requests {
		body := []byte(`{"checks":[`)
		for j := range n {
			if j > 0 {
				body = append(body, ',')
			}
			body = append(body, checkBody(subject(random.IntN(subjects)))...)
		}
		requests[i] = load.Request{Path: "/v1/check/batch", Key: t.key, Body: append(body, `]}`...)}
	}
	return load.NewTraffic(requests, load.Uniform, seed)
}

// The names of two rows that have a goal.
const (
	fifthOfCapacity = "weir, a fifth of capacity"
	halfOfCapacity  = "weir, half of capacity"
)

// groups returns the tables of a run: those named in the options, or all.
func (c *cast) groups(o options) ([]group, error) {
	uniform := spread(c.plain, load.Uniform)
	bare := cell{name: "bare net/http server", server: bareName, traffic: uniform, checks: 1, base: true}
	weir := func(name string, traffic *load.Traffic) cell {
		return cell{name: name, server: weirName, traffic: traffic, checks: 1}
	}
	denied := weir("one hot subject, denied", hot(c.denied, "tight"))
	denied.denied = true

	all := []group{
		{"subjects", "Subjects", []cell{
			bare,
			weir("10 000 subjects, uniform", uniform),
			weir("10 000 subjects, Zipf", spread(c.plain, load.Zipf)),
			weir("one hot subject, allowed", hot(c.plain, "hot")),
			denied,
			{name: emptyName, server: bareName, traffic: empty(), checks: 1},
		}},
		{"rules", "Matching rules", []cell{
			bare, weir("1 rule", uniform), weir("3 rules", spread(c.three, load.Uniform)), weir("10 rules", spread(c.ten, load.Uniform)),
		}},
		c.algorithmGroup(bare, weir),
		protocolGroup("tls", "HTTP/1.1 over TLS", load.TLS, uniform),
		protocolGroup("http2", "HTTP/2 over TLS", load.HTTP2, uniform),
		c.batchGroup(bare, weir),
		c.billingGroup(bare, weir, uniform),
		// Leases need busy subjects: with ten thousand random subjects, almost none is leased.
		{"leased", "Leased rule", []cell{
			bare,
			weir("one hot subject, strict", hot(c.plain, "hot")),
			weir(leasedHot, hot(c.leased, "hot")),
			weir("100 subjects, leased", few(c.leased, 100, load.Uniform)),
			weir("10 000 subjects, Zipf, leased", spread(c.leased, load.Zipf)),
			c.leasing(1),
			c.leasing(64),
		}},
		c.countersGroup(bare, weir),
		c.crowd.group(bare),
		c.instancesGroup(bare, uniform),
		c.shardsGroup(bare),
		c.authorizeGroup(bare, weir, uniform),
		c.grpcGroup(o.peers),
	}
	if o.peers {
		all = append(all, peerGroup(bare, weir("weir, uniform", uniform), denied, uniform))
	}
	all = append(all, openGroup(o.rates, bare, weir("weir", uniform)))
	return pick(all, o.groups)
}

// leasing returns the row of one process that decides in its memory.
func (c *cast) leasing(callers int) cell {
	return cell{name: fmt.Sprintf("one hot subject, decided by a Go client with leases, callers: %d", callers), server: weirName,
		checks: 1, leasing: &leasing{c.leased, callers}}
}

func (c *cast) algorithmGroup(bare cell, weir func(string, *load.Traffic) cell) group {
	g := group{"algorithms", "Algorithms", []cell{bare}}
	for _, a := range algorithms {
		g.cells = append(g.cells, weir(a, spread(c.algorithm[a], load.Uniform)))
	}
	return g
}

func protocolGroup(name, title string, protocol load.Protocol, traffic *load.Traffic) group {
	g := group{name, title, nil}
	for _, server := range []string{bareName, weirName} {
		g.cells = append(g.cells, cell{name: server, server: server, protocol: protocol, traffic: traffic, checks: 1, base: server == bareName})
	}
	return g
}

// batchGroup compares checks in batches with single requests to the bare server.
func (c *cast) batchGroup(bare cell, weir func(string, *load.Traffic) cell) group {
	g := group{"batches", "Batches", []cell{bare}}
	for _, n := range []int{10, 100} {
		batch := weir(fmt.Sprintf("batches of %d", n), batches(c.plain, n))
		batch.checks = n
		g.cells = append(g.cells, batch)
	}
	return g
}

// Two of billedRules: the one that the others are compared with, and the metered one.
const unbilled, metered = 0, 3

// billedRules have what billing adds to a rule, one thing each.
var billedRules = []struct {
	slug, name string
	rule       rule
}{
	{"fixed-day", "fixed window of a day", rule{Slug: "requests", Algorithm: "fixed_window", Limit: generous, Window: "1d"}},
	{"warned", "with warn_at", rule{Slug: "requests", Algorithm: "fixed_window", Limit: generous, Window: "1d", WarnAt: 0.8}},
	{"over", "with overage", rule{Slug: "requests", Algorithm: "fixed_window", Limit: generous, Window: "1d", Overage: "allow"}},
	{"metered", "metered", rule{Slug: "requests", Algorithm: "fixed_window", Limit: generous, Window: "1d", Metering: "units"}},
	{"year", "calendar year, anchored at the subject", rule{Slug: "requests", Algorithm: "fixed_window", Limit: generous, Window: "year", Anchor: "subject"}},
}

// billingGroup shows what each part of billing adds to a check: after the rows of checks without
// it, each row is compared with the nearest base before it, which has the same rule without that
// part.
func (c *cast) billingGroup(bare cell, weir func(string, *load.Traffic) cell, uniform *load.Traffic) group {
	g := group{"billing", "Billing: compared with the nearest row above whose ratios are 1.00", []cell{bare, weir("sliding window, no billing", uniform)}}
	add := func(name string, traffic *load.Traffic, base bool) {
		row := weir(name, traffic)
		row.base = base
		g.cells = append(g.cells, row)
	}
	for i, b := range billedRules {
		add(b.name, spread(c.billed[i], load.Uniform), i == unbilled)
	}
	add("one busy subject, fixed window of a day", hot(c.billed[unbilled], "hot"), true)
	add("one busy subject, metered", hot(c.billed[metered], "hot"), false)
	return g
}

func openGroup(rates []int64, bare, weir cell) group {
	g := group{"open", "Open loop: latency from the time a request was due", nil}
	bare.name = bareName
	for _, rate := range rates {
		bare.rate, weir.rate = rate, rate
		g.cells = append(g.cells, bare, weir)
	}
	bare.rate, weir.rate = 0, 0
	bare.share, weir.share, weir.name = 5, 5, fifthOfCapacity
	g.cells = append(g.cells, bare, weir)
	bare.share, weir.share, weir.name = 2, 2, halfOfCapacity
	g.cells = append(g.cells, bare, weir)
	return g
}

func pick(all []group, names []string) ([]group, error) {
	if len(names) == 0 {
		return all, nil
	}
	var picked []group
	for _, name := range names {
		i := slices.IndexFunc(all, func(g group) bool { return g.name == name })
		if i < 0 {
			return nil, fmt.Errorf("no mix %q", name)
		}
		picked = append(picked, all[i])
	}
	return picked, nil
}
