package dashboard

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// The actions on the credits of a subject.
const (
	doGrant  = "grant"
	doRevoke = "revoke-credits"
)

// mostGrants is how many grants of a subject are shown, newest first.
const mostGrants = 50

// creditView is a grant of prepaid units.
type creditView struct {
	ID, Rule, Units, Spent, Balance string
	State, Tone                     string
	Reference, Reason, By           string
	Granted                         moment
	Expires                         *moment
	Revocable                       bool
}

// creditState returns what can become of a grant.
func creditState(c *tenants.Credits, now time.Time) (state, tone string) {
	switch {
	case c.RevokedAt != nil:
		return "revoked", "off"
	case c.Spent >= c.Units:
		return "spent", "off"
	case c.Balance(now) == 0:
		return "expired", "off"
	}
	return "open", "good"
}

func (d *dashboard) readCredits(ctx context.Context, v *visit, subject string) (out []creditView, err error) {
	list, _, err := d.Store.Credits(ctx, v.actor(), subject, tenants.Page{Limit: mostGrants})
	if err != nil {
		return nil, err
	}
	for i := range list {
		c := &list[i]
		view := creditView{
			ID: c.ID.String(), Rule: c.Rule, Units: grouped(c.Units), Spent: grouped(c.Spent), Balance: grouped(c.Balance(v.now)),
			Reference: c.Reference, Reason: c.Reason, By: c.CreatedBy, Granted: moment{c.CreatedAt}, Expires: momentOf(c.ExpiresAt),
		}
		view.State, view.Tone = creditState(c, v.now)
		view.Revocable = v.frame.May.Edit && view.State == "open"
		out = append(out, view)
	}
	return out, nil
}

// grantCredits grants the subject prepaid units.
func (d *dashboard) grantCredits(ctx context.Context, s *subjectChange) (string, error) {
	n := tenants.NewCredits{
		Rule: s.Get("rule"), Units: s.integer("units"), ExpiresAt: s.instant("expires_at"), Reference: s.Get("reference"), Reason: s.reason,
	}
	if s.invalid() {
		return "", nil
	}
	c, created, err := d.Store.GrantCredits(ctx, s.visit.actor(), s.subject, n)
	var conflict *tenants.ConflictError
	switch {
	case errors.As(err, &conflict):
		s.wrong("reference", limit.Wrong("Use another one.", "has granted other credits before"))
		return "", nil
	case err == nil && !created:
		return "This reference had granted these credits before. Nothing changed.", nil
	}
	return grouped(c.Units) + " credits for " + d.ruleName(ctx, s, c.Rule) + " granted to " + s.subject + ".", err
}

// revokeCredits takes back what is left of a grant.
func (d *dashboard) revokeCredits(ctx context.Context, s *subjectChange) (string, error) {
	id, err := uuid.Parse(s.Get("grant"))
	if err != nil {
		return "", errForm
	}
	return "Credits of " + s.subject + " revoked.", d.Store.RevokeCredits(ctx, s.visit.actor(), s.subject, id, tenants.Match{})
}
