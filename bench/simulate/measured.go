package simulate

// measuredRow is a row of the tables that bench prints, for a closed loop of 64 connections.
type measuredRow struct {
	name      string
	instances int
	shards    int // 0: one Redis that is no Cluster
	rules     int
	tenants   int
	fit       bool // the costs were fitted to it

	rate, p50, p99        float64 // checks per second, milliseconds
	server, redis, driver float64 // µs of CPU time per check
}

// measuredRun says where measuredRows come from.
const measuredRun = "TODO"

// connections is the number of connections of the benchmarks.
const connections = 64

var measuredRows = []measuredRow{
	{"instances: 1", 1, 0, 1, 1, true, 21862, 2.51, 8.15, 26.0, 8.5, 14.8},
	{"instances: 2", 2, 0, 1, 1, false, 22356, 2.42, 10.49, 26.7, 8.9, 13.3},
	{"instances: 3", 3, 0, 1, 1, false, 17913, 3.05, 10.62, 34.1, 11.0, 16.4},
	{"one Redis, no Cluster, 64 tenants", 1, 0, 1, 64, true, 23427, 2.38, 8.73, 22.0, 8.0, 14.3},
	{"shards: 1, 64 tenants", 1, 1, 1, 64, true, 20756, 2.60, 10.32, 25.7, 10.4, 14.0},
	{"shards: 3, 64 tenants", 1, 3, 1, 64, false, 19888, 2.95, 8.21, 27.6, 15.8, 14.5},
	{"shards: 6, 64 tenants", 1, 6, 1, 64, true, 16847, 3.07, 12.02, 27.0, 26.0, 15.1},
}

// runRow is a row of BenchmarkShards: concurrent callers of the engine, without HTTP, 64 tenants.
type runRow struct {
	shards, callers int
	perCall         float64 // checks per script run
	fit             bool
}

var runRows = []runRow{
	{0, 64, 29, false}, {0, 256, 95, false}, {1, 64, 30, false}, {1, 256, 94, false}, {3, 64, 15, false}, {3, 256, 33, false}, {6, 64, 7, false}, {6, 256, 21, false},
}
