package main

import (
	"context"
	"fmt"
	"log/slog"
)

type operatorKeyCommand struct {
	Create operatorKeyCreateCommand `cmd:"" help:"Create a key that may create tenants, and print it. It is shown only once."`
}

type operatorKeyCreateCommand struct {
	Name string `arg:"" optional:"" default:"operator" help:"What the key is for."`
}

// Run creates an operator key and prints it.
func (c operatorKeyCreateCommand) Run(ctx context.Context, cfg *Config, log *slog.Logger) error {
	store, err := openForCommand(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer store.Close()
	_, key, err := store.CreateOperatorKey(ctx, c.Name)
	if err != nil {
		return fmt.Errorf("create an operator key: %w", err)
	}
	fmt.Println(key.Secret())
	return nil
}
