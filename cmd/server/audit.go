package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/google/uuid"

	"weir/internal/tenants"
)

type auditCommand struct {
	Heads  auditHeadsCommand  `cmd:"" help:"Print the head of each tenant's audit trail, as 'TENANT_ID SEQUENCE:HASH'."`
	Verify auditVerifyCommand `cmd:"" help:"Verify the audit trails of all tenants. Exits with 0 if all are intact, with 1 if one is broken."`
}

type auditVerifyCommand struct {
	Tenant string `help:"Slug or id of the only tenant to verify."`
	Head   string `help:"Head of that tenant's trail from the server's log or an earlier run (SEQUENCE:HASH). It must still be in the trail."`
	From   string `help:"Continue after this row of that tenant's trail, where an earlier run stopped (SEQUENCE:HASH)."`
}

// Run verifies trails and prints a line about each.
func (c auditVerifyCommand) Run(ctx context.Context, cfg *Config, log *slog.Logger) error {
	what := tenants.AuditVerification{Rows: auditVerifyRows}
	for _, given := range []struct {
		flag, text string
		to         **tenants.AuditMark
	}{{"--head", c.Head, &what.Remembered}, {"--from", c.From, &what.After}} {
		if given.text == "" {
			continue
		}
		mark, err := tenants.ParseAuditMark(given.text)
		if err != nil {
			return fmt.Errorf("%s %w", given.flag, err)
		}
		if c.Tenant == "" {
			return fmt.Errorf("%s applies to one trail: name its tenant with --tenant", given.flag)
		}
		*given.to = &mark
	}
	store, err := openForCommand(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer store.Close()
	all, broken := 0, 0
	err = c.eachTenant(ctx, store, func(t tenants.Tenant) error {
		intact, err := verifyTrail(ctx, store, t, what)
		all++
		if !intact {
			broken++
		}
		return err
	})
	if err == nil && broken > 0 {
		return fmt.Errorf("%d of %d audit trails are broken", broken, all)
	}
	return err
}

// auditVerifyRows is the number of rows of one trail after which the progress is printed.
const auditVerifyRows = 100_000

// verifyTrail prints whether one trail is intact. For a long one it reports the progress, so that
// an interrupted verification can be continued.
func verifyTrail(ctx context.Context, store *tenants.Store, t tenants.Tenant, what tenants.AuditVerification) (intact bool, err error) {
	var rows int64
	old := ""
	for first := true; ; first = false {
		report, err := store.VerifyAudit(ctx, tenants.AsSystem(t.ID, "audit verify"), what)
		if err != nil {
			return false, fmt.Errorf("read the audit trail of %s: %w", t.Slug, err)
		}
		rows += report.Rows
		switch {
		case first && report.From.Sequence > report.Removed.Sequence:
			old = fmt.Sprintf(" after row %d, before which nothing was read", report.From.Sequence)
		case first && report.Removed.Sequence > 0:
			old = fmt.Sprintf(" after %d removed rows", report.Removed.Sequence)
		}
		switch {
		case !report.Valid:
			fmt.Printf("%s: BROKEN at row %d: %s\n", t.Slug, report.BrokenAt, report.Problem)
			return false, nil
		case report.Complete:
			fmt.Printf("%s: intact, %d rows%s, head %s\n", t.Slug, rows, old, report.Head)
			return true, nil
		}
		fmt.Printf("%s: %d rows so far; to continue from there: --from %s\n", t.Slug, rows, report.Head)
		what.After = &report.Head
	}
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

type auditHeadsCommand struct{}

// Run prints the head of each trail.
func (auditHeadsCommand) Run(ctx context.Context, cfg *Config, log *slog.Logger) error {
	store, err := openForCommand(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer store.Close()
	out := bufio.NewWriter(os.Stdout)
	if err := store.AuditHeads(ctx, func(h tenants.AuditHead) { _, _ = out.WriteString(headLine(h)) }); err != nil { // Flush returns the error
		return err
	}
	return out.Flush()
}

// headLine is the line of `server audit heads` about one trail.
func headLine(h tenants.AuditHead) string { return h.Tenant.String() + " " + h.String() + "\n" }

const (
	auditHeadsEvery = time.Hour
	// auditHeadsBack is how much longer than auditHeadsEvery the last row of a trail may be old, so
	// that a slow round and different clocks miss none. At the start, it is a day.
	auditHeadsBack  = 5 * time.Minute
	auditHeadsFirst = 24 * time.Hour
	// allHeads is the number of trails up to which the heads of all are logged each time.
	allHeads = 1000
)

// logAuditHeads writes heads of audit trails to the log, at once and then every hour until ctx
// ends. The owner of the database can replace a trail by another valid one. The heads in the log
// reveal that.
func logAuditHeads(ctx context.Context, store *tenants.Store, log *slog.Logger) {
	ticker := time.NewTicker(auditHeadsEvery)
	defer ticker.Stop()
	since, hours := time.Now().Add(-auditHeadsFirst), 1
	for {
		began := time.Now()
		err := logHeadsSince(ctx, store, log, since, began, hours)
		switch {
		case err == nil:
			since, hours = began.Add(-auditHeadsBack), 1
		case ctx.Err() == nil:
			hours++
			log.Warn("audit heads not logged; trying again in an hour", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// headIsDue reports whether the hour of a tenant's head is among the last hours, of which now is in
// the latest one.
func headIsDue(tenant uuid.UUID, now time.Time, hours int) bool {
	ago := now.UTC().Hour() - int(tenant[15])%24
	if ago < 0 {
		ago += 24
	}
	return ago < hours
}

// logHeadsSince logs the heads of the trails with a row since an instant. Up to allHeads trails, it
// logs all heads. Of more, it also logs one of 24 parts of the others for each of the last hours
// that were not logged, so that each head is logged once a day, whatever time its row claims. The
// last line has the digest of all heads, also of those that were not logged: the SHA-256 of what
// `server audit heads` prints.
func logHeadsSince(ctx context.Context, store *tenants.Store, log *slog.Logger, since, now time.Time, hours int) error {
	var older []tenants.AuditHead
	trails, logged := 0, 0
	line := func(h tenants.AuditHead) {
		logged++
		log.Info("audit head", "tenant_id", h.Tenant, "head", h.String())
	}
	digest := sha256.New()
	err := store.AuditHeads(ctx, func(h tenants.AuditHead) {
		trails++
		digest.Write([]byte(headLine(h)))
		switch {
		case h.At != nil && h.At.After(since), headIsDue(h.Tenant, now, hours):
			line(h)
		case len(older) < allHeads:
			older = append(older, h)
		}
	})
	if err != nil {
		return err
	}
	if trails <= allHeads {
		for _, h := range older {
			line(h)
		}
	}
	log.Info("audit heads", "trails", trails, "logged", logged, "digest", hex.EncodeToString(digest.Sum(nil)))
	return nil
}
