package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"

	"weir/internal/billing"
	"weir/internal/seal"
	"weir/internal/tenants"
)

type billingCommand struct {
	Reconcile billingReconcileCommand `cmd:"" help:"Compare the subscriptions of billing endpoints with their providers, and give subjects the plans that follow."`
	RotateKey billingRotateCommand    `cmd:"" name:"rotate-key" help:"Re-encrypt all secrets with the first key of WEIR_ENCRYPTION_KEY."`
}

type billingReconcileCommand struct {
	Tenant   string `help:"Slug or id of the only tenant to reconcile."`
	Endpoint string `help:"Id of the only billing endpoint to reconcile."`
	DryRun   bool   `help:"Print what would change, and change nothing."`
}

// reconcileProgress is the number of subscriptions after which the progress is printed.
const reconcileProgress = 1000

// Run compares one endpoint at a time, and prints what changes. It fails if an endpoint could not
// be compared.
func (c billingReconcileCommand) Run(ctx context.Context, cfg *Config, log *slog.Logger) error {
	var only uuid.UUID
	if c.Endpoint != "" {
		id, err := uuid.Parse(c.Endpoint)
		if err != nil {
			return fmt.Errorf("--endpoint: must be the id of a billing endpoint, not %q", c.Endpoint)
		}
		only = id
	}
	store, err := openForCommand(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer store.Close()
	runner := billing.New(billing.Options{Store: store, StripeURL: cfg.StripeURL, Logger: log})
	compared, failed := 0, 0
	err = auditVerifyCommand{Tenant: c.Tenant}.eachTenant(ctx, store, func(t tenants.Tenant) error {
		return eachEndpoint(ctx, store, t, func(e tenants.BillingEndpoint) error {
			if only != uuid.Nil && e.ID != only || e.APIKeyHint == "" {
				return nil
			}
			compared++
			err := c.one(ctx, runner, t, e)
			if err == nil || ctx.Err() != nil {
				return err
			}
			failed++
			fmt.Printf("%s %s: not compared: %v\n", t.Slug, e.ID, err)
			return nil
		})
	})
	switch {
	case err != nil:
		return err
	case failed > 0:
		return fmt.Errorf("%d of %d endpoints could not be compared", failed, compared)
	case compared == 0:
		fmt.Println("no billing endpoint has an API key: nothing to compare")
	}
	return nil
}

func (c billingReconcileCommand) one(ctx context.Context, runner *billing.Runner, t tenants.Tenant, e tenants.BillingEndpoint) error {
	does := "changed"
	if c.DryRun {
		does = "would change"
	}
	name := t.Slug + " " + e.ID.String()
	sum, err := runner.Reconcile(ctx, t.ID, e, c.DryRun, func(sum billing.Summary, r tenants.ReconcileResult) {
		for _, change := range r.Changes {
			fmt.Printf("%s: %s %s: %s\n", name, does, r.Subscription, change)
		}
		if r.Problem != "" {
			fmt.Printf("%s: not settled %s: %s\n", name, r.Subscription, r.Problem)
		}
		if sum.Subscriptions%reconcileProgress == 0 {
			fmt.Printf("%s: %d subscriptions so far\n", name, sum.Subscriptions)
		}
	})
	if err != nil {
		return err
	}
	if sum.PurchasesErr != nil {
		fmt.Printf("%s: purchases not compared: %v\n", name, sum.PurchasesErr)
	}
	if sum.Recovered > 0 && c.DryRun {
		fmt.Printf("%s: %d events of purchases did not arrive\n", name, sum.Recovered)
	} else if sum.Recovered > 0 {
		fmt.Printf("%s: %d events of purchases did not arrive; a running server processes them now\n", name, sum.Recovered)
	}
	fmt.Printf("%s: %d subscriptions compared, %d %s, %d not settled\n", name, sum.Subscriptions, sum.Repaired, does, sum.Problems)
	return nil
}

func eachEndpoint(ctx context.Context, store *tenants.Store, t tenants.Tenant, do func(tenants.BillingEndpoint) error) error {
	list, _, err := store.BillingEndpoints(ctx, tenants.AsSystem(t.ID, "billing"), tenants.Page{Limit: 1000})
	if err != nil {
		return fmt.Errorf("list the billing endpoints of %s: %w", t.Slug, err)
	}
	for _, e := range list {
		if err := do(e); err != nil {
			return err
		}
	}
	return nil
}

type billingRotateCommand struct{}

// Run encrypts the secrets of all tenants with the first key.
func (billingRotateCommand) Run(ctx context.Context, cfg *Config, log *slog.Logger) error {
	if cfg.EncryptionKey == "" {
		return settingError("WEIR_ENCRYPTION_KEY is not set")
	}
	store, err := openForCommand(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer store.Close()
	done := 0
	err = auditVerifyCommand{}.eachTenant(ctx, store, func(t tenants.Tenant) error {
		n, err := store.Reencrypt(ctx, tenants.AsSystem(t.ID, "billing rotate-key"))
		done += n
		if err != nil {
			return fmt.Errorf("tenant %s: %w", t.Slug, err)
		}
		return nil
	})
	fmt.Printf("%d endpoints re-encrypted; the others already used the first key\n", done)
	return err
}

// encryptionKeyFile is the file with the key of the demo.
const encryptionKeyFile = "encryption.key"

// ensureEncryptionKey creates a key for the demo, unless one is set.
func (d demoCommand) ensureEncryptionKey(cfg *Config) error {
	if cfg.EncryptionKey != "" {
		return nil
	}
	file := filepath.Join(d.Dir, encryptionKeyFile)
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		text = []byte(seal.NewKey() + "\n")
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("the demo's encryption key: %w", err)
	}
	cfg.EncryptionKey = Secret(strings.TrimSpace(string(text)))
	_, err = cfg.ring()
	return err
}
