package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"weir/internal/tenants"
)

type auditCommand struct {
	Verify auditVerifyCommand `cmd:"" help:"Exit with 0 if the audit trails of all tenants are whole, with 1 if one is not."`
}

type auditVerifyCommand struct {
	Tenant string `help:"Slug or id of the only tenant to look at."`
	Head   string `help:"Head of that tenant's trail as the server's log or an earlier run has it (SEQUENCE:HASH): it must still be in the trail."`
}

// Run verifies trails and prints a line about each.
func (c auditVerifyCommand) Run(ctx context.Context, cfg *Config, log *slog.Logger) error {
	if err := cfg.requireDatabase(); err != nil {
		return err
	}
	var remembered *tenants.AuditMark
	if c.Head != "" {
		mark, err := tenants.ParseAuditMark(c.Head)
		if err != nil {
			return fmt.Errorf("--head %w", err)
		}
		if c.Tenant == "" {
			return errors.New("--head is of one trail: say of which, by --tenant")
		}
		remembered = &mark
	}
	store, err := openStore(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer store.Close()
	all, broken := 0, 0
	err = c.eachTenant(ctx, store, func(t tenants.Tenant) error {
		report, err := store.VerifyAudit(ctx, tenants.AsSystem(t.ID, "audit verify"), remembered)
		if err != nil {
			return fmt.Errorf("read the audit trail of %s: %w", t.Slug, err)
		}
		all++
		if report.Valid {
			old := ""
			if report.Removed.Sequence > 0 {
				old = fmt.Sprintf(" after %d that are removed", report.Removed.Sequence)
			}
			fmt.Printf("%s: whole, %d rows%s, head %s\n", t.Slug, report.Rows, old, report.Head)
			return nil
		}
		broken++
		fmt.Printf("%s: BROKEN at row %d: %s\n", t.Slug, report.BrokenAt, report.Problem)
		return nil
	})
	if err == nil && broken > 0 {
		return fmt.Errorf("%d of %d audit trails are broken", broken, all)
	}
	return err
}

func (c auditVerifyCommand) eachTenant(ctx context.Context, store *tenants.Store, do func(tenants.Tenant) error) error {
	operator := tenants.AsOperator("audit verify")
	if c.Tenant != "" {
		t, err := store.TenantBySlugOrID(ctx, operator, c.Tenant)
		if err != nil {
			return fmt.Errorf("tenant %s: %w", c.Tenant, err)
		}
		return do(t)
	}
	page := tenants.Page{Limit: 1000}
	for {
		list, next, err := store.ListTenants(ctx, operator, tenants.TenantFilter{}, page)
		if err != nil {
			return fmt.Errorf("list the tenants: %w", err)
		}
		for _, t := range list {
			if err := do(t); err != nil {
				return err
			}
		}
		if next == "" {
			return nil
		}
		page.After = next
	}
}

const auditHeadsEvery = time.Hour

// logAuditHeads writes the head of every tenant's audit trail to the log, at once and then every
// hour until ctx ends. Whoever can write to the database can make another trail that is whole in
// itself; who keeps the log finds out.
func logAuditHeads(ctx context.Context, store *tenants.Store, log *slog.Logger) {
	ticker := time.NewTicker(auditHeadsEvery)
	defer ticker.Stop()
	for {
		err := store.AuditHeads(ctx, func(h tenants.AuditHead) {
			log.Info("audit head", "tenant_id", h.Tenant, "head", h.String())
		})
		if err != nil && ctx.Err() == nil {
			log.Warn("audit heads not logged; trying again in an hour", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
