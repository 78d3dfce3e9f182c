package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"weir/bench/load"
)

// meteredOptions are those of -metered.
type meteredOptions struct {
	wanted   bool
	subjects int
	measure  time.Duration
}

func (o meteredOptions) validate() error {
	if o.subjects < 1 || o.subjects > 5_000_000 || o.measure < time.Second || o.measure > 10*time.Minute {
		return errors.New("-metered-subjects must be 1 to 5000000, and -metered-time 1s to 10m")
	}
	return nil
}

// rowsPatience is how long to wait for the rows of the checks.
const rowsPatience = 10 * time.Minute

// meteredRow is what checks of many subjects cost under one rule.
type meteredRow struct {
	name     string
	sample   sample
	rows     int64         // that Postgres has in the end
	duration time.Duration // from the first check to the last row
	behind   time.Duration // the part of it after the last check
}

// measureMetered compares checks of many subjects under a rule that is not metered, and under one
// that is, which takes a row for each subject. The subjects are asked in turn.
func measureMetered(ctx context.Context, o options) error {
	progress("building and starting the servers")
	s, err := newStage(ctx, o)
	defer s.close()
	if err != nil {
		return err
	}
	plain := rule{Slug: "requests", Algorithm: "fixed_window", Limit: generous, Window: "1d"}
	metered := plain
	metered.Metering = "units"
	tenants := []*tenant{{slug: "plain", rules: []rule{plain}}, {slug: "metered", rules: []rule{metered}}}
	if err := s.prepare(ctx, tenants); err != nil {
		return err
	}
	var rows []meteredRow
	for _, t := range tenants {
		progress("checks of %s subjects, %s", thousands(float64(o.metered.subjects)), t.slug)
		row, err := s.measureRows(ctx, t, o)
		if err != nil {
			return err
		}
		rows = append(rows, row)
	}
	f, err := s.facts(ctx, o)
	if err != nil {
		return err
	}
	for _, fact := range f[:3] {
		fmt.Printf("- %s\n", fact)
	}
	fmt.Printf("- %s subjects in turn, for %s on %d connections; one instance.\n\n", thousands(float64(o.metered.subjects)), o.metered.measure, connections)
	fmt.Print(meteredTable(rows))
	return nil
}

// measureRows asks for a tenant's subjects in turn, and waits until Postgres has a row for each
// subject that was asked for, if the rule is metered.
func (s *stage) measureRows(ctx context.Context, t *tenant, o options) (row meteredRow, err error) {
	requests := make([]load.Request, o.metered.subjects)
	for i := range requests {
		requests[i] = checkRequest(t.key, fmt.Sprintf("customer_%07d", i))
	}
	c := cell{name: t.slug, server: weirName, traffic: load.NewTraffic(requests, load.InTurn, seed), checks: 1}
	before, err := s.meteredRows(ctx)
	if err != nil {
		return row, err
	}
	o.measure, o.warm = o.metered.measure, 0
	begun := time.Now()
	row = meteredRow{name: t.slug}
	if row.sample, err = s.measure(ctx, c, 0, o); err != nil {
		return row, err
	}
	checked := time.Now()
	if t.rules[0].Metering == "" {
		return row, nil
	}
	want := min(row.sample.requests, int64(o.metered.subjects))
	for row.rows < want {
		if time.Since(checked) > rowsPatience {
			return row, fmt.Errorf("%d of %d rows after %s", row.rows, want, rowsPatience)
		}
		if err := ctx.Err(); err != nil {
			return row, err
		}
		time.Sleep(100 * time.Millisecond)
		rows, err := s.meteredRows(ctx)
		if err != nil {
			return row, err
		}
		row.rows = rows - before
	}
	row.duration, row.behind = time.Since(begun), time.Since(checked)
	return row, nil
}

// meteredRows returns the number of rows of metered usage.
func (s *stage) meteredRows(ctx context.Context) (n int64, err error) {
	conn, err := s.connect(ctx, s.database)
	if err != nil {
		return 0, err
	}
	defer conn.Close(ctx)
	return n, conn.QueryRow(ctx, "SELECT count(*) FROM metered_usage").Scan(&n)
}

func meteredTable(rows []meteredRow) string {
	out := "| rule | checks/s | p99 ms | server µs | Redis µs | allocs | peak MB | rows | rows/s | behind s |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n"
	for _, r := range rows {
		perSecond, behind := "–", "–"
		if r.rows > 0 {
			perSecond, behind = thousands(ratio(float64(r.rows), r.duration.Seconds())), fmt.Sprintf("%.1f", r.behind.Seconds())
		}
		out += fmt.Sprintf("| %s | %s | %s | %.1f | %.1f | %.1f | %.0f | %s | %s | %s |\n", r.name, thousands(r.sample.perSecond), millis(r.sample.p99),
			r.sample.serverCPU, r.sample.redisCPU, r.sample.allocations, r.sample.peakBytes/(1<<20), thousands(float64(r.rows)), perSecond, behind)
	}
	return out
}
