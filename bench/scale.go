package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/jackc/pgx/v5"
)

// openScale gives the stage a database with the deployment of o. It reuses a database of that name
// that an earlier run kept.
func (s *stage) openScale(ctx context.Context, o scaleOptions) error {
	if o.keep == "" {
		if err := firstErr(ctx, s.createDatabase, s.startRedis, s.migrate); err != nil {
			return err
		}
		return s.loadScale(ctx, o)
	}
	name := "weir_scale_" + strings.ToLower(o.keep)
	if err := s.findPostgres(); err != nil {
		return err
	}
	s.database = name
	var there bool
	conn, err := s.connect(ctx, s.owner.Database)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&there); err != nil {
		return err
	}
	if there {
		progress("using the database %s with the sizes of its creation", name)
		return firstErr(ctx, s.startRedis, s.migrate, s.resetUse)
	}
	if err := s.execute(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()); err != nil {
		return err
	}
	err = firstErr(ctx, s.startRedis, s.migrate)
	if err == nil {
		err = s.loadScale(ctx, o)
	}
	if err != nil { // an incomplete database is useless for the next run
		_ = s.execute(context.WithoutCancel(ctx), "DROP DATABASE "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)")
	}
	return err
}

// resetUse resets the time of last use of all keys, as in a new database.
func (s *stage) resetUse(ctx context.Context) error {
	return s.write(ctx, "UPDATE api_keys SET last_used_at = NULL WHERE last_used_at IS NOT NULL")
}

func firstErr(ctx context.Context, steps ...func(context.Context) error) error {
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Names of the instances: writer executes the changes that weir must apply.
const writerName = "writer"

// measureScale loads a deployment with many tenants, and prints what it costs an instance.
func measureScale(ctx context.Context, o options) error {
	s := &stage{servers: map[string]*server{}, timeout: o.timeout}
	defer s.close()
	progress("building and starting the servers")
	if err := firstErr(ctx, s.makeFolder, s.build); err != nil {
		return err
	}
	if err := s.openScale(ctx, o.scale); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	r := &scaleRun{stage: s, o: o.scale, random: rand.New(rand.NewPCG(uint64(started.UnixNano()), 1))}
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"starting an instance with memory for few tenants", r.startSmall},
		{"starting an instance", r.startFull},
		{"checks of one tenant and of all loaded tenants, in turns", r.oneAgainstMany},
		{"changing rules and revoking keys", r.changes},
		{"checks of tenants that are not loaded", r.cold},
		{"checks of loaded tenants while others are loaded", r.interference},
		{"a restore", r.restore},
		{"heads of audit trails", r.heads},
		{"checks of the largest tenant", r.largest},
	} {
		progress("%s", step.name)
		if err := step.do(ctx); err != nil {
			words := ""
			if sv := s.servers[weirName]; sv != nil {
				words = sv.lastWords()
			}
			return fmt.Errorf("%s: %w%s", step.name, err, words)
		}
	}
	f, err := s.facts(ctx, options{rounds: 1})
	if err != nil {
		return err
	}
	for _, fact := range f[:3] {
		fmt.Printf("- %s\n", fact)
	}
	fmt.Printf("- %s tenants with %d keys, 3 plans and %d rules each, %s rules in all; %s subjects of 16 bytes, a tenth of them of one tenant and %d of each other; one in ten has an override. `WEIR_POLICY_MEMORY` is %s.\n\n",
		thousands(float64(r.o.tenants)), keysEach, r.o.rulesEach(), thousands(float64(r.o.rules)), thousands(float64(r.o.subjects)), r.o.subjectsEach(), r.o.memory)
	fmt.Print("| figure | |\n|---|---:|\n")
	for _, row := range r.rows {
		fmt.Printf("| %s | %s |\n", row[0], row[1])
	}
	return nil
}
