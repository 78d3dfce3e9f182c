package simulate

// measuredRun says where measuredTables come from.
const measuredRun = "`bench/run.sh -mixes rules,instances,shards -peers=false -rounds 5 -measure 1s -warm 300ms`, " +
	"2026-11-26 07:05 UTC, Weir at e1b6032, AMD EPYC, two cores for everything; other processes used 46 % of the CPU time."

// connections is the number of connections of the benchmarks.
const connections = 64

// measuredTable is a table that bench prints. Its row of the bare server says how fast the cores
// were during this table, and how much of them was left by other processes.
type measuredTable struct {
	bareRate, bareServer, bareDriver float64
	rows                             []measuredRow
}

// measuredRow is a row for a closed loop of 64 connections.
type measuredRow struct {
	name      string
	instances int
	shards    int // 0: one Redis that is no Cluster
	rules     int
	tenants   int
	fit       bool // the costs were fitted to it
	// odd is why the rate may differ by more than 15 %; "": it may not.
	odd string

	rate, p50, p99        float64 // checks per second, milliseconds
	server, redis, driver float64 // µs of CPU time per check
}

// measuredTables are the tables of matching rules, instances and shards.
var measuredTables = []measuredTable{
	{34112, 20.9, 12.0, []measuredRow{
		{"1 rule", 1, 0, 1, 1, false, "", 32045, 1.84, 4.87, 18.3, 6.0, 12.0},
		{"3 rules", 1, 0, 3, 1, false, "", 25373, 2.34, 5.59, 19.7, 8.7, 11.8},
		{"10 rules", 1, 0, 10, 1, true, "", 18069, 3.37, 9.02, 25.7, 16.1, 14.3},
	}},
	{32197, 21.9, 12.3, []measuredRow{
		{"instances: 1", 1, 0, 1, 1, true, "", 29075, 1.97, 5.70, 17.8, 6.4, 12.9},
		{"instances: 2", 2, 0, 1, 1, false, "", 26289, 2.24, 5.13, 22.8, 7.7, 12.0},
		{"instances: 3", 3, 0, 1, 1, false, "", 24113, 2.37, 6.79, 30.7, 9.5, 13.9},
	}},
	{28130, 22.0, 13.4, []measuredRow{
		{"one Redis, no Cluster, 64 tenants", 1, 0, 1, 64, true, "", 21314, 2.79, 7.37, 22.9, 9.0, 13.2},
		{"shards: 1, 64 tenants", 1, 1, 1, 64, true, "", 22304, 2.55, 7.35, 21.5, 9.1, 13.7},
		{"shards: 3, 64 tenants", 1, 3, 1, 64, false, "", 19116, 2.85, 8.81, 26.3, 15.6, 14.0},
		{"shards: 6, 64 tenants", 1, 6, 1, 64, true, "", 15009, 3.77, 10.88, 33.3, 28.6, 15.6},
		{"one Redis, no Cluster, 10 000 tenants", 1, 0, 1, 10_000, true, "", 16118, 2.90, 27.15, 39.0, 11.6, 14.5},
		{"shards: 1, 10 000 tenants", 1, 1, 1, 10_000, false, "", 18767, 3.02, 8.41, 30.0, 12.3, 14.0},
		{"shards: 3, 10 000 tenants", 1, 3, 1, 10_000, false, "", 14521, 3.81, 13.62, 39.6, 20.4, 14.0},
		{"shards: 6, 10 000 tenants", 1, 6, 1, 10_000, false, "the rates of its five rounds differ by 119 %", 14444, 3.79, 13.12, 42.2, 30.4, 15.7},
	}},
}

// reference is the table of which Costs have the absolute values.
var reference = &measuredTable{bareRate: 32197, bareServer: 21.9, bareDriver: 12.3}

// usable returns the part of a core that the processes got.
func (t *measuredTable) usable() float64 {
	return t.bareRate * (t.bareServer + t.bareDriver) / 1e6 / 2
}

// slower returns how many times as much CPU time as in the reference the same work took.
func (t *measuredTable) slower() float64 {
	return (t.bareServer + t.bareDriver) / (reference.bareServer + reference.bareDriver)
}

// runRow is a row of BenchmarkShards: concurrent callers of the engine, without HTTP, 64 tenants.
type runRow struct {
	shards, callers int
	perCall         float64 // checks per script run
}

// runRows are those of decision 13. No cost was fitted to them.
var runRows = []runRow{
	{0, 64, 29}, {0, 256, 95}, {1, 64, 30}, {1, 256, 94}, {3, 64, 15}, {3, 256, 33}, {6, 64, 7}, {6, 256, 21},
}
