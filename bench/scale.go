package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// openScale gives the stage a database with the deployment that o says: one that was kept, where
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
		return firstErr(ctx, s.startRedis, s.migrate)
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

func firstErr(ctx context.Context, steps ...func(context.Context) error) error {
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

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
	return nil
}
