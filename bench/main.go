// Command bench measures a check from end to end: in real processes on loopback, in turns on Weir
// and on a bare net/http server. It prints tables in Markdown, which docs/performance.md explains.
// Start it with bench/run.sh, which starts a PostgreSQL. It requires Linux.
//
// It stops every process that it started, even after Ctrl-C, and deletes their data.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"weir/bench/kernel"
)

// options are the options of the command line.
type options struct {
	rounds   int
	measure  time.Duration
	warm     time.Duration
	tenants  []int
	profile  string
	sharing  bool
	rates    []int64
	groups   []string
	peers    bool
	timeout  time.Duration
	write    bool
	limit    time.Duration
	admin    adminOptions
	pages    pagesOptions
	scale    scaleOptions
	crowded  crowdedOptions
	metered  meteredOptions
	simulate simulateOptions
}

func parseOptions(args []string) (o options, err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.IntVar(&o.rounds, "rounds", 3, "how many times to measure each mix; the tables show medians")
	flags.DurationVar(&o.measure, "measure", 2500*time.Millisecond, "how long to measure each mix in a round")
	flags.DurationVar(&o.warm, "warm", 500*time.Millisecond, "how long to warm up each mix before a measurement")
	tenants := flags.String("tenants", "1,100,10000,100000", "numbers of active tenants in the table of tenants; the highest one is the number of tenants")
	rates := flags.String("rates", "2000,10000", "request rates per second of the open loop, in addition to a fifth and half of Weir's maximum")
	mixes := flags.String("mixes", "", "only these tables; choose from subjects,rules,leased,algorithms,tls,http2,batches,billing,counters,tenants,instances,shards,authorize,grpc,peers,open")
	flags.BoolVar(&o.peers, "peers", true, "also measure other rate limiters")
	flags.DurationVar(&o.timeout, "redis-timeout", time.Second, "how long Weir's checks wait for Redis; with a low value, checks on a busy machine are degraded")
	flags.BoolVar(&o.write, "write", false, "write the tables to docs/performance.md, or to docs/scaling.md with -simulate")
	flags.StringVar(&o.profile, "profile", "", "write CPU, allocation, mutex and block profiles of Weir under each mix into this `folder`, in a separate run before the first round")
	flags.DurationVar(&o.limit, "limit", 40*time.Minute, "stop after this time in any case")
	flags.BoolVar(&o.sharing, "pipelines", false, "measure only ways to share pipelines to Redis, without HTTP")
	flags.BoolVar(&o.admin.wanted, "admin", false, "measure only the lists and searches of the admin API")
	flags.IntVar(&o.admin.tenants, "admin-tenants", 1000, "with -admin: number of tenants")
	flags.IntVar(&o.admin.rules, "admin-rules", 100_000, "with -admin: total number of rules")
	flags.IntVar(&o.admin.subjects, "admin-subjects", 1_000_000, "with -admin: total number of registered subjects")
	flags.IntVar(&o.admin.requests, "admin-requests", 1000, "with -admin: number of requests for each list or search")
	flags.BoolVar(&o.pages.wanted, "pages", false, "measure only the pages of the dashboard")
	flags.IntVar(&o.pages.rules, "pages-rules", 1000, "with -pages: number of rules of the tenant")
	flags.IntVar(&o.pages.subjects, "pages-subjects", 1_000_000, "with -pages: number of its registered subjects")
	flags.IntVar(&o.pages.requests, "pages-requests", 500, "with -pages: number of requests for each page")
	flags.BoolVar(&o.scale.wanted, "scale", false, "measure only the cost of many tenants for an instance")
	flags.IntVar(&o.scale.tenants, "scale-tenants", 100_000, "with -scale: number of tenants")
	flags.IntVar(&o.scale.rules, "scale-rules", 1_000_000, "with -scale: total number of rules")
	flags.IntVar(&o.scale.subjects, "scale-subjects", 10_000_000, "with -scale: total number of registered subjects")
	flags.StringVar(&o.scale.memory, "scale-memory", "512MiB", "with -scale: WEIR_POLICY_MEMORY of the instances")
	flags.StringVar(&o.scale.keep, "scale-keep", "", "with -scale: keep the loaded database under this name, and reuse it if it exists")
	flags.BoolVar(&o.crowded.overload, "overload", false, "measure only overload: more connections and a higher rate than one instance can serve")
	flags.BoolVar(&o.crowded.neighbours, "neighbours", false, "measure only what a tenant notices of another one that sends as fast as it can")
	flags.StringVar(&o.crowded.before, "before", "", "with -overload and -neighbours: also measure the server of another checkout in this `folder`, in turns")
	flags.IntVar(&o.crowded.connections, "overload-connections", 2000, "with -overload: number of connections")
	flags.BoolVar(&o.metered.wanted, "metered", false, "measure only metered usage: checks of many subjects, and the rows that they take")
	flags.IntVar(&o.metered.subjects, "metered-subjects", 1_000_000, "with -metered: number of subjects")
	flags.DurationVar(&o.metered.measure, "metered-time", time.Minute, "with -metered: how long to check them, in turn")
	flags.BoolVar(&o.simulate.wanted, "simulate", false, "measure nothing: simulate several machines, and print the tables of docs/scaling.md; with -write, write them to the page")
	flags.BoolVar(&o.simulate.fit, "simulate-fit", false, "with -simulate: only fit the costs to the measured tables, and print them")
	flags.Uint64Var(&o.simulate.seed, "simulate-seed", 1, "with -simulate: seed of everything random")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	o.groups = list(*mixes)
	for _, text := range list(*rates) {
		rate, err := strconv.ParseInt(text, 10, 64)
		if err != nil || rate < 1 || rate > 1_000_000 {
			return o, fmt.Errorf("-rates: %q is not a number from 1 to 1000000", text)
		}
		o.rates = append(o.rates, rate)
	}
	for _, text := range list(*tenants) {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 100_000 {
			return o, fmt.Errorf("-tenants: %q is not a number from 1 to 100000", text)
		}
		o.tenants = append(o.tenants, n)
	}
	switch {
	case len(o.tenants) == 0:
		return o, errors.New("-tenants: name at least one number")
	case flags.NArg() > 0:
		return o, fmt.Errorf("unknown argument %q", flags.Arg(0))
	case o.rounds < 1 || o.rounds > 100:
		return o, errors.New("-rounds: must be 1 to 100")
	case o.measure < 10*time.Millisecond || o.measure > 10*time.Minute || o.warm < 0 || o.warm > time.Minute:
		return o, errors.New("-measure must be 10ms to 10m, and -warm up to 1m")
	}
	return o, errors.Join(o.admin.validate(), o.pages.validate(), o.scale.validate(), o.metered.validate())
}

func list(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}

func main() {
	o, err := parseOptions(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(0)
	}
	if err == nil {
		err = run(o)
	}
	if errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "bench: interrupted; its processes are stopped")
		os.Exit(130)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, o.limit)
	defer cancel()

	if o.simulate.wanted {
		return simulateScaling(o)
	}
	if o.sharing {
		return measurePipelines(ctx, o)
	}
	if o.admin.wanted {
		return measureAdmin(ctx, o)
	}
	if o.pages.wanted {
		return measurePages(ctx, o)
	}
	if o.scale.wanted {
		return measureScale(ctx, o)
	}
	if o.metered.wanted {
		return measureMetered(ctx, o)
	}
	if o.crowded.overload || o.crowded.neighbours {
		return measureCrowded(ctx, o)
	}
	progress("building and starting the servers")
	s, err := newStage(ctx, o)
	defer s.close()
	if err != nil {
		return err
	}
	cast := newCast(o)
	progress("making %d tenants", len(cast.all()))
	if err := s.prepare(ctx, cast.all()); err != nil {
		return err
	}
	groups, err := cast.groups(o)
	if err != nil {
		return err
	}
	cells := 0
	for _, g := range groups {
		cells += len(g.cells)
	}
	progress("%d mixes, %d rounds: about %s", cells, o.rounds, (time.Duration(cells*o.rounds) * (o.measure + o.warm)).Round(time.Second))
	r := newResults(groups)
	for round := range o.rounds {
		if err := r.measureRound(ctx, s, cast, round, o); err != nil {
			return err
		}
	}
	facts, err := s.facts(ctx, o)
	if err != nil {
		return err
	}
	report := r.markdown(facts)
	fmt.Print(report)
	if o.write {
		return writeReport(s.root, report)
	}
	return nil
}

var (
	started       = time.Now()
	loadBefore, _ = kernel.Load() // 0 if the load is unknown
)

// progress reports the current step on standard error, with the time since the start.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "bench: %5.1fs  %s\n", time.Since(started).Seconds(), fmt.Sprintf(format, args...))
}
