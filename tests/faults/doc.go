// Package faults measures what the service does during faults. Each row of the table in
// docs/reliability.md is a case here: a function that starts real servers, injects one fault under
// load, and compares every recorded decision with what was permitted. `make faults` runs all cases
// and writes the table. `make faults ROWS=R1,R2` runs some of them.
//
// The parts:
//
//   - rig_test.go starts three instances of the service with Postgres and Redis (one server,
//     Sentinels or a Cluster). link_test.go is the proxy between an instance and a server: it can be
//     closed, delayed or made silent, for one instance alone.
//   - load_test.go sends checks at a constant rate and records each answer.
//   - oracle_test.go computes the figures from the records: errors, units admitted beyond a limit,
//     units denied below it, latencies, and how long degraded answers started and ended after the
//     fault.
//   - row_test.go has the list of rows, and what a case reports. report_test.go writes the table.
//   - One file for each table has its rows, and cases: nofault, redis, postgres, processes, tenants
//     and security. Others have a file of their own: exact, linear and timed, with upheaval for what
//     occurs to a Cluster meanwhile; busy, clocks and replica; start, configuration, upgrade and drill;
//     clients and http2.
//   - soak_test.go injects random faults for a long time.
//
// Example. Case R1 kills Redis. The rule `local` of the probe tenant allows 24 units per 2 seconds
// to each subject. The load asks for 40, over three instances. Before the fault the oracle finds 24
// admitted units in each complete window: none over, none under. Redis is killed at 3.1 s. The last
// instance begins to answer in degraded mode 43 ms later: this is the figure "detect". In the
// window from 2 s to 4 s, 25 units are admitted: one over, 4 %. In each window inside the outage,
// the three shares of 8 units allow 24. Redis is back at 8 s. "Recover" is the time until the last
// instance answers from Redis again. The case reports these figures, each with its goal.
//
// Figures are of two kinds. Counts cannot be late: on any machine no unit may be admitted beyond
// the bound, and no request may fail. A count that misses its goal fails the test, and so does a
// count over nothing, such as no window. Times depend on the machine. They are reported and never
// fail a test.
//
// `go test` without arguments runs the quick rows only, with short faults, so that `make test`
// verifies the counts.
package faults
