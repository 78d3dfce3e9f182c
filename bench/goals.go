package main

import (
	"fmt"
	"slices"
	"strings"
)

// goal is a goal of the design, and the result of this run.
type goal struct {
	figure   string
	aim      string
	measured string
	reached  bool
}

// goals compares the rows with the goals of the design. It omits goals whose mixes were not
// measured.
func (r *results) goals(all [][]row) []goal {
	find := func(group, name string) *row {
		for i, g := range r.groups {
			if g.name != group {
				continue
			}
			if j := slices.IndexFunc(all[i], func(w row) bool { return w.name == name }); j >= 0 {
				return &all[i][j]
			}
		}
		return nil
	}
	var goals []goal
	atLeast := func(figure string, least, got float64) {
		goals = append(goals, goal{figure, fmt.Sprintf("at least %.2f", least), fmt.Sprintf("%.2f", got), got >= least})
	}
	atMost := func(figure string, most, got float64) {
		goals = append(goals, goal{figure, fmt.Sprintf("at most %.2f", most), fmt.Sprintf("%.2f", got), got <= most})
	}
	below := func(figure string, bound, got float64) {
		goals = append(goals, goal{figure, fmt.Sprintf("below %.2f", bound), fmt.Sprintf("%.2f", got), got < bound})
	}
	if w := find("subjects", "10 000 subjects, uniform"); w != nil {
		atLeast("one rule, 10 000 subjects: rate relative to the bare server", 0.9, w.rateRatio)
		atMost("the same: CPU of server and Redis relative to the bare server", 1.25, w.cpuRatio)
		atMost("the same: allocations per check", 12, w.allocations)
	}
	if w := find("subjects", "one hot subject, denied"); w != nil {
		atLeast("one hot subject, denied: rate relative to the bare server", 0.95, w.rateRatio)
	}
	if w := find("leased", leasedHot); w != nil {
		atLeast("leased rule, one hot subject: rate relative to the bare server", 0.95, w.rateRatio)
	}
	if one, ten := find("rules", "1 rule"), find("rules", "10 rules"); one != nil && ten != nil {
		atMost("ten rules relative to one: CPU", 1.5, ratio(ten.cpuRatio, one.cpuRatio))
	}
	if counter := find("algorithms", algorithms[0]); counter != nil {
		for _, name := range []string{"sliding_window_log", "sliding_window_buckets"} {
			if w := find("algorithms", name); w != nil {
				atMost("`"+name+"` relative to `"+counter.name+"`: CPU", 1.3, ratio(w.cpuRatio, counter.cpuRatio))
			}
		}
		if counter.redisBytes > 0 {
			atMost("bytes in Redis per counter, sliding window counter", 110, counter.redisBytes)
		}
	}
	if w := find("http2", weirName); w != nil {
		atLeast("HTTP/2: rate relative to a bare HTTP/2 server", 0.95, w.rateRatio)
		atMost("the same: CPU", 1.15, w.cpuRatio)
	}
	if w := find("batches", "batches of 100"); w != nil {
		atLeast("batches of 100: checks relative to the bare server's requests", 6, w.rateRatio)
	}
	if one, many := find("tenants", "1 tenant"), r.last("tenants", all); one != nil && many != nil {
		atMost(many.name+" relative to one: p50", 1.1, ratio(many.p50Ratio, one.p50Ratio))
		atMost("the same: CPU of server and Redis", 1.1, ratio(many.cpuRatio, one.cpuRatio))
	}
	for _, tenants := range []int{shardTenants, shardCrowd} {
		one := find("shards", shardsRow(0, tenants))
		for _, n := range shardCounts {
			if w := find("shards", shardsRow(n, tenants)); one != nil && w != nil && n > 1 {
				atMost(w.name+": CPU relative to one Redis", 1.3, ratio(w.cpuRatio, one.cpuRatio))
				atLeast("the same: rate", 1, ratio(w.rateRatio, one.rateRatio))
			}
		}
	}
	if weir, peer := find("peers", "weir, uniform"), find("peers", "redis_rate, uniform"); weir != nil && peer != nil {
		atLeast("rate relative to redis_rate", 1.7, ratio(weir.rateRatio, peer.rateRatio))
	}
	if weir, peer := find("peers", "weir, uniform"), find("peers", envoyName+", uniform"); weir != nil && peer != nil {
		atLeast("rate relative to envoyproxy/ratelimit, HTTP", 3, ratio(weir.rateRatio, peer.rateRatio))
	}
	if check, gateway := find("authorize", "/v1/check"), find("authorize", "/v1/authorize"); check != nil && gateway != nil {
		atLeast("/v1/authorize: rate relative to a check", 0.95, ratio(gateway.rateRatio, check.rateRatio))
	}
	if w := find("grpc", weirCalls); w != nil {
		atLeast("gRPC: rate relative to a bare gRPC server", 0.95, w.rateRatio)
		atMost("the same: CPU", 1.15, w.cpuRatio)
	}
	if weir, peer := find("grpc", weirCalls), find("grpc", envoyCalls); weir != nil && peer != nil {
		atLeast("rate relative to envoyproxy/ratelimit, gRPC", 3, ratio(weir.rateRatio, peer.rateRatio))
	}
	// The goals are for the server, so the lateness of the driver is not part of the figures.
	if w := find("open", halfOfCapacity); w != nil {
		atMost("open loop at half of capacity: p99 above the bare server's, ms", 0.5, w.p99Above/1000)
	}
	if w := find("open", fifthOfCapacity); w != nil {
		below("open loop at a fifth of capacity: p99.9, ms", 5, w.servedP999/1000)
	}
	return goals
}

// last returns the last row of a group, or nil.
func (r *results) last(group string, all [][]row) *row {
	for i, g := range r.groups {
		if g.name == group {
			return &all[i][len(all[i])-1]
		}
	}
	return nil
}

func writeGoals(b *strings.Builder, goals []goal) {
	if len(goals) == 0 {
		return
	}
	b.WriteString("\n### Goals\n\n| figure | goal | measured | met |\n|---|---:|---:|---|\n")
	for _, g := range goals {
		reached := "no"
		if g.reached {
			reached = "yes"
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", g.figure, g.aim, g.measured, reached)
	}
}
