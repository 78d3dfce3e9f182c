package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/jackc/pgx/v5"
)

// openScale gives the stage a database with the deployment that o says: one that was kept, if
// there is one of that name.
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
	conn, err := pgx.ConnectConfig(ctx, s.owner)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&there); err != nil {
		return err
	}
	if there {
		progress("using the database %s, whatever sizes it was made with", name)
		return firstErr(ctx, s.startRedis, s.migrate, s.forgetUse)
	}
	if err := s.execute(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()); err != nil {
		return err
	}
	err = firstErr(ctx, s.startRedis, s.migrate)
	if err == nil {
		err = s.loadScale(ctx, o)
	}
	if err != nil { // half of it is of no use to the next run
		_ = s.execute(context.WithoutCancel(ctx), "DROP DATABASE "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)")
	}
	return err
}

// forgetUse makes all tenants as good as never asked for, as they are in a new database.
func (s *stage) forgetUse(ctx context.Context) error {
	config := s.owner.Copy()
	config.Database = s.database
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, "UPDATE api_keys SET last_used_at = NULL WHERE last_used_at IS NOT NULL")
	return err
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

// measureScale loads a deployment of many tenants and prints what it costs an instance.
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
		{"starting an instance that has room for hardly any tenant", r.startSmall},
		{"starting an instance", r.startFull},
		{"asking for one tenant and for all that are loaded, by turns", r.oneAgainstMany},
		{"changing rules and revoking keys", r.changes},
		{"asking for tenants that are not loaded", r.cold},
		{"asking for loaded tenants while others are loaded", r.interference},
		{"asking for the largest tenant", r.largest},
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
