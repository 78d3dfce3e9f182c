package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"weir/bench/load"
)

// profileTime is how long a mix is profiled, in full seconds, as the server requires.
const profileTime = 4 * time.Second

// profileKinds are the profiles of each mix. All except the CPU profile are the difference over
// that time.
var profileKinds = []string{"profile", "allocs", "mutex", "block"}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// profile runs a mix of Weir again while its internal address writes profiles. The tables do not
// include this run, because profiling has a cost.
func (s *stage) profile(ctx context.Context, group string, c cell, o options) error {
	sv := s.servers[c.server]
	if sv.binary() != weirName {
		return nil
	}
	if err := os.MkdirAll(o.profile, 0o755); err != nil {
		return err
	}
	name := filepath.Join(o.profile, strings.Trim(notInNames.ReplaceAllString(strings.ToLower(fmt.Sprintf("%s %s %s", group, c.name, rateText(c.rate))), "-"), "-"))
	internal := strings.TrimSuffix(sv.metrics, "/metrics")
	var fetching sync.WaitGroup
	errs := make([]error, len(profileKinds))
	plan := load.Plan{Connections: connections, Warm: o.warm, Measure: profileTime + time.Second, End: func() {}, Begin: func() {
		for i, kind := range profileKinds {
			fetching.Go(func() {
				errs[i] = download(ctx, fmt.Sprintf("%s/debug/pprof/%s?seconds=%d", internal, kind, int(profileTime.Seconds())), name+"."+kind)
			})
		}
	}}
	_, err := ask(ctx, sv, s.cert, c, c.rate, plan)
	fetching.Wait()
	if err := firstOf(append(errs, err)); err != nil {
		return fmt.Errorf("profile %s: %w", c.name, err)
	}
	if err := s.writeTops(ctx, name); err != nil {
		return err
	}
	progress("profiled %s, %s: %s.txt", group, c.name, name)
	return nil
}

// rateText returns the rate of an open loop as part of a file name.
func rateText(rate int64) string {
	if rate == 0 {
		return ""
	}
	return strconv.FormatInt(rate, 10)
}

// binary returns the name of the program of the process.
func (sv *server) binary() string { return filepath.Base(sv.cmd.Path) }

func firstOf(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func download(ctx context.Context, url, file string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %s", url, response.Status, body)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(file, body, 0o644)
}

// writeTops writes the profiles as text: for each, the shares of packages and the top functions.
func (s *stage) writeTops(ctx context.Context, name string) error {
	var b strings.Builder
	for _, kind := range profileKinds {
		args := []string{"tool", "pprof", "-top", "-nodefraction=0", "-nodecount=100000"}
		if kind == "allocs" {
			args = append(args, "-sample_index=alloc_objects")
		}
		top, err := exec.CommandContext(ctx, "go", append(args, s.binary(weirName), name+"."+kind)...).Output()
		if err != nil {
			return fmt.Errorf("go tool pprof %s.%s: %w", name, kind, err)
		}
		fmt.Fprintf(&b, "%s\n\n%s\n", kind, summary(string(top)))
	}
	return os.WriteFile(name+".txt", []byte(b.String()), 0o644)
}

// topShown is the number of functions of a profile in the text, flat and cumulative.
const topShown = 20

// profiled is a row of a profile: a function's flat and cumulative share.
type profiled struct {
	line      string
	name      string
	flat, cum float64 // percent
}

// summary converts the output of `go tool pprof -top` into the shares of packages, the top
// functions by flat share, and Weir's functions by cumulative share.
func summary(top string) string {
	shares := map[string]float64{}
	var b, parts strings.Builder
	var ours []profiled
	shown := 0
	for lines := bufio.NewScanner(strings.NewReader(top)); lines.Scan(); {
		p, ok := parseProfiled(lines.Text())
		if !ok {
			fmt.Fprintln(&b, lines.Text())
			continue
		}
		if shown++; shown <= topShown && p.flat > 0 {
			fmt.Fprintln(&b, p.line)
		}
		shares[partOf(p.name)] += p.flat
		if strings.HasPrefix(p.name, "weir/") {
			ours = append(ours, p)
		}
	}
	names := slices.SortedFunc(maps.Keys(shares), func(a, b string) int { return cmp.Compare(shares[b], shares[a]) })
	for _, part := range names {
		if shares[part] >= 0.5 {
			fmt.Fprintf(&parts, "%6.1f%%  %s\n", shares[part], part)
		}
	}
	slices.SortStableFunc(ours, func(a, b profiled) int { return cmp.Compare(b.cum, a.cum) })
	fmt.Fprintln(&b, "\nWeir's functions, cumulative")
	for _, p := range ours[:min(topShown, len(ours))] {
		fmt.Fprintln(&b, p.line)
	}
	return parts.String() + "\n" + b.String()
}

// parseProfiled parses "0.84s 38.18% 38.18% 0.84s 38.18% function".
func parseProfiled(line string) (p profiled, ok bool) {
	fields := strings.Fields(line)
	if len(fields) < 6 || !strings.HasSuffix(fields[1], "%") || !strings.HasSuffix(fields[4], "%") {
		return p, false
	}
	flat, err := strconv.ParseFloat(strings.TrimSuffix(fields[1], "%"), 64)
	if err != nil {
		return p, false
	}
	cum, err := strconv.ParseFloat(strings.TrimSuffix(fields[4], "%"), 64)
	return profiled{line: line, name: strings.Join(fields[5:], " "), flat: flat, cum: cum}, err == nil
}

// parts are the groups of packages; the first match counts.
var parts = []struct{ prefix, name string }{
	{"internal/runtime/syscall", "system calls"}, {"syscall", "system calls"},
	{"weir/internal/api", "weir/internal/api"}, {"weir/internal/check", "weir/internal/check"}, {"weir/", "weir, other rooms"},
	{"net/http", "net/http"}, {"github.com/go-chi", "chi"}, {"github.com/redis", "go-redis"}, {"github.com/prometheus", "Prometheus client"},
	{"crypto/", "crypto"}, {"internal/poll", "net"}, {"net", "net"}, {"bufio", "bufio"},
	{"runtime", "runtime"}, {"internal/runtime", "runtime"}, {"sync", "sync"}, {"internal/sync", "sync"}, {"time", "time"},
}

func partOf(function string) string {
	for _, p := range parts {
		if strings.HasPrefix(function, p.prefix) {
			return p.name
		}
	}
	return "others"
}
