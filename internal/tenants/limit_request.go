package tenants

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// States of a limit request.
const (
	RequestOpen     = "open"
	RequestApproved = "approved"
	RequestRefused  = "refused"
)

const (
	// LimitRequestRetention is how long a settled request is kept.
	LimitRequestRetention = 400 * 24 * time.Hour
	// maxDailyRequests is how many requests a subject may send in 24 hours.
	maxDailyRequests = 5
	// automaticAnswer is the answer to a request that the settings approved.
	automaticAnswer = "Approved automatically."
)

// Codes of ConflictError about limit requests.
const (
	CodeRequestOpen    = "REQUEST_OPEN"    // the subject has an open one for this limit
	CodeRequestSettled = "REQUEST_SETTLED" // it was approved or refused
	CodeRequestsOff    = "REQUESTS_OFF"    // the tenant takes none
)

// LimitRequest is a customer's request for a higher limit.
type LimitRequest struct {
	ID            uuid.UUID
	Subject, Rule string
	Had, Asked    int64
	Note          string // the customer's
	State         string // RequestOpen, RequestApproved or RequestRefused
	Automatic     bool   // approved by the settings
	Granted       int64  // 0 unless approved
	GrantedUntil  *time.Time
	Answer        string // for the customer
	SettledBy     string
	SettledAt     *time.Time
	CreatedAt     time.Time
}

// NewLimitRequest is what a customer asks for.
type NewLimitRequest struct {
	Rule  string
	Had   limit.Limit // the present limit, as checks see it
	Asked int64
	Note  string
}

// RequestLimit stores a customer's request for a higher limit. If the settings allow it, the
// request is approved at once, by a temporary override. notify are the addresses of the members who
// decide, if it waits for them. Errors: *InvalidError; *ConflictError with CodeRequestOpen or
// CodeRequestsOff; ErrNotFound if the visit has ended.
func (s *Store) RequestLimit(ctx context.Context, v *PortalVisit, n NewLimitRequest) (out LimitRequest, notify []string, err error) {
	err = s.change(ctx, v.Actor(), 0, func(ctx context.Context, c *change) error {
		if _, err := c.PortalVisit(ctx, db.PortalVisitParams{TenantID: c.tenant, ID: v.ID, Now: c.now}); err != nil {
			return err // also if the link was deleted, or the tenant suspended, meanwhile
		}
		settings, err := readPortal(ctx, c.Queries, c.tenant)
		if err != nil {
			return err
		}
		if !settings.Requests {
			return &ConflictError{CodeRequestsOff, "requests for higher limits are not possible here"}
		}
		r, err := c.rule(ctx, n.Rule)
		if err != nil {
			return err
		}
		if err := invalidIf(n.validate(&r.Rule)); err != nil {
			return err
		}
		counts, err := c.CountLimitRequests(ctx, db.CountLimitRequestsParams{
			TenantID: c.tenant, Subject: v.Subject, RuleID: r.ID, Since: c.now.Add(-24 * time.Hour),
			ApprovedSince: c.now.Add(-time.Duration(settings.AutoEvery.MS) * time.Millisecond),
		})
		switch {
		case err != nil:
			return err
		case counts.Open > 0:
			return &ConflictError{CodeRequestOpen, "a request for this limit is already open"}
		case counts.Recent >= maxDailyRequests:
			return &ConflictError{CodeRequestOpen, "too many requests were sent in the last 24 hours: try again tomorrow"}
		}
		row, err := c.InsertLimitRequest(ctx, db.InsertLimitRequestParams{
			TenantID: c.tenant, ID: newID(), Subject: v.Subject, RuleID: r.ID, Had: n.Had.Limit, Asked: n.Asked, Note: n.Note, CreatedAt: c.now,
		})
		if err != nil {
			return err
		}
		out = limitRequestOf(row, r.Slug)
		automatic, err := c.mayApproveItself(ctx, v.Subject, r, &n, &settings)
		if err != nil {
			return err
		}
		if automatic && counts.Approved == 0 {
			until := c.now.Add(time.Duration(settings.AutoFor.MS) * time.Millisecond)
			if err := c.approve(ctx, &out, r, n.raised(n.Asked), until, automaticAnswer, true); err != nil {
				return err
			}
			return c.notifyRequest(ctx, LimitRequestCreated, &out)
		}
		if err := c.notifyRequest(ctx, LimitRequestCreated, &out); err != nil {
			return err
		}
		notify, err = c.ManagersToNotify(ctx, c.tenant)
		return err
	})
	return out, notify, err
}

// validate returns the errors of what a customer asks for.
func (n *NewLimitRequest) validate(r *limit.Rule) (fields []limit.FieldError) {
	checkText(&fields, "note", n.Note, 500)
	switch {
	case n.Had.Unlimited || n.Had.Limit < 1:
		fields = append(fields, limit.FieldProblem("rule", limit.Wrong("Choose a limit.", "is not limited")))
	case n.Asked <= n.Had.Limit:
		fields = append(fields, limit.FieldProblem("limit", limit.Wrong("Enter a higher number.", "must be more than the present limit of %d", n.Had.Limit)))
	default:
		raised := n.raised(n.Asked)
		for _, f := range raised.Validate(r) {
			f.Field = "limit"
			fields = append(fields, f)
		}
	}
	return fields
}

// raised returns the present limit with another number. A burst grows in proportion.
func (n *NewLimitRequest) raised(to int64) limit.Limit { return raisedLimit(n.Had, to) }

func raisedLimit(had limit.Limit, to int64) limit.Limit {
	out := limit.Limit{Limit: to}
	if had.Burst > 0 && had.Limit > 0 && had.Burst != had.Limit {
		burst := float64(had.Burst) * (float64(to) / float64(had.Limit))
		out.Burst = max(1, int64(min(burst, math.MaxInt64/2)))
	}
	return out
}

// mayApproveItself reports whether the settings approve a request. An override that is in force or
// to come is a decision of a member, so a request for another one waits for a member, too. So does
// one about another limit than the subject has: the instance that shows the page may not know the
// newest plan yet.
func (c *change) mayApproveItself(ctx context.Context, subject string, r Rule, n *NewLimitRequest, settings *Portal) (bool, error) {
	if settings.AutoPercent == 0 || float64(n.Asked) > float64(n.Had.Limit)*(1+float64(settings.AutoPercent)/100) {
		return false, nil
	}
	owner, err := readSubject(ctx, c.Queries, c.tenant, subject)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return false, err
	}
	if o, exists := owner.override(r.Slug); exists && (o.ExpiresAt == nil || o.ExpiresAt.After(c.now)) {
		return false, nil
	}
	has, err := c.limitOfPlan(ctx, owner, r)
	return has == n.Had.Limit, err
}

// approve settles a request by an override.
func (c *change) approve(ctx context.Context, q *LimitRequest, r Rule, lim limit.Limit, until time.Time, answer string, automatic bool) error {
	o := Override{Rule: r.Slug, Limit: lim, ExpiresAt: &until, Reason: "request of the customer"}
	if automatic {
		if err := invalidIf(append(o.Limit.Validate(&r.Rule), o.validate(c.now)...)); err != nil {
			return err
		}
		owner, err := readSubject(ctx, c.Queries, c.tenant, q.Subject)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		owner.Subject = q.Subject
		if _, err := c.writeOverride(ctx, owner, err == nil, o, r); err != nil {
			return err
		}
	} else if _, _, err := c.putOverride(ctx, q.Subject, o, Match{}); err != nil {
		return err
	}
	row, err := c.UpdateLimitRequest(ctx, db.UpdateLimitRequestParams{
		TenantID: c.tenant, ID: q.ID, State: RequestApproved, Automatic: automatic, Granted: &lim.Limit, GrantedUntil: &until,
		Answer: answer, SettledBy: c.actor.label(), SettledAt: &c.now,
	})
	*q = limitRequestOf(row, r.Slug)
	return err
}

// Approval is the decision for a request.
type Approval struct {
	Limit  *int64        // nil: what the customer asked for
	Burst  *int64        // of a bucket; nil: in proportion to that of the rule
	For    time.Duration // up to MaxBoost
	Answer string        // for the customer
}

// ApproveLimitRequest approves a request by a temporary override of its subject. Errors:
// ErrNotFound, ErrForbidden, *InvalidError, *ConflictError with CodeRequestSettled.
func (s *Store) ApproveLimitRequest(ctx context.Context, a Actor, id uuid.UUID, in Approval) (out LimitRequest, err error) {
	err = s.change(ctx, a, MayBoost, func(ctx context.Context, c *change) error {
		if out, err = c.openRequest(ctx, id); err != nil {
			return err
		}
		var fields []limit.FieldError
		checkText(&fields, "answer", in.Answer, 500)
		if in.For < time.Hour || in.For > MaxBoost {
			fields = append(fields, limit.FieldProblem("for", limit.MustBe("a duration from 1h to 30d, such as 7d")))
		}
		if in.Limit != nil && *in.Limit < 1 { // to grant nothing is to refuse
			fields = append(fields, limit.FieldProblem("limit", limit.Wrong("Omit it to grant what the customer asked for, or refuse the request.", "must be 1 or more")))
		}
		if in.Burst != nil && *in.Burst < 1 {
			fields = append(fields, limit.FieldProblem("burst", limit.Wrong("Omit it for a burst in proportion to that of the rule.", "must be 1 or more")))
		}
		if err := invalidIf(fields); err != nil {
			return err
		}
		r, err := c.rule(ctx, out.Rule)
		if err != nil {
			return err
		}
		granted := out.Asked
		if in.Limit != nil {
			granted = *in.Limit
		}
		lim := raisedLimit(limit.Limit{Limit: r.Limit, Burst: r.Burst}, granted)
		if in.Burst != nil {
			lim.Burst = *in.Burst
		}
		if err := c.approve(ctx, &out, r, lim, c.now.Add(in.For), in.Answer, false); err != nil {
			return err
		}
		return c.notifyRequest(ctx, LimitRequestSettled, &out)
	})
	return out, err
}

// RefuseLimitRequest refuses a request. Errors: ErrNotFound, ErrForbidden, *InvalidError,
// *ConflictError with CodeRequestSettled.
func (s *Store) RefuseLimitRequest(ctx context.Context, a Actor, id uuid.UUID, answer string) (out LimitRequest, err error) {
	err = s.change(ctx, a, MayBoost, func(ctx context.Context, c *change) error {
		if out, err = c.openRequest(ctx, id); err != nil {
			return err
		}
		var fields []limit.FieldError
		checkText(&fields, "answer", answer, 500)
		if err := invalidIf(fields); err != nil {
			return err
		}
		row, err := c.UpdateLimitRequest(ctx, db.UpdateLimitRequestParams{
			TenantID: c.tenant, ID: id, State: RequestRefused, Answer: answer, SettledBy: c.actor.label(), SettledAt: &c.now,
		})
		if err != nil {
			return err
		}
		out = limitRequestOf(row, out.Rule)
		return c.notifyRequest(ctx, LimitRequestSettled, &out)
	})
	return out, err
}

func (c *change) openRequest(ctx context.Context, id uuid.UUID) (LimitRequest, error) {
	row, err := c.LimitRequestByID(ctx, db.LimitRequestByIDParams{TenantID: c.tenant, ID: id})
	if err != nil {
		return LimitRequest{}, err
	}
	if row.State != RequestOpen {
		return LimitRequest{}, &ConflictError{CodeRequestSettled, "this request was already " + row.State}
	}
	return limitRequestRow(row), nil
}

// LimitRequestFilter selects requests. "" matches all.
type LimitRequestFilter struct{ State, Subject string }

// LimitRequests lists requests, newest first.
func (s *Store) LimitRequests(ctx context.Context, a Actor, f LimitRequestFilter, p Page) (out []LimitRequest, next string, err error) {
	after, err := p.after()
	if err != nil {
		return nil, "", err
	}
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		rows, err := q.LimitRequests(ctx, db.LimitRequestsParams{TenantID: a.tenant, After: after, State: f.State, Subject: f.Subject, Most: p.most()})
		rows, next = cut(p, rows, func(r db.LimitRequestsRow) uuid.UUID { return r.ID })
		out = make([]LimitRequest, len(rows))
		for i, row := range rows {
			out[i] = limitRequestRow(db.LimitRequestByIDRow(row))
		}
		return err
	})
	return out, next, err
}

// LimitRequest returns a request, or ErrNotFound.
func (s *Store) LimitRequest(ctx context.Context, a Actor, id uuid.UUID) (out LimitRequest, err error) {
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		row, err := q.LimitRequestByID(ctx, db.LimitRequestByIDParams{TenantID: a.tenant, ID: id})
		out = limitRequestRow(row)
		return err
	})
	return out, err
}

// OpenLimitRequests returns how many requests are open, up to 100.
func (s *Store) OpenLimitRequests(ctx context.Context, a Actor) (n int64, err error) {
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		n, err = q.CountOpenLimitRequests(ctx, a.tenant)
		return err
	})
	return n, err
}

func limitRequestRow(row db.LimitRequestByIDRow) LimitRequest {
	return limitRequestOf(db.LimitRequest{
		TenantID: row.TenantID, ID: row.ID, Subject: row.Subject, RuleID: row.RuleID, Had: row.Had, Asked: row.Asked, Note: row.Note,
		State: row.State, Automatic: row.Automatic, Granted: row.Granted, GrantedUntil: row.GrantedUntil, Answer: row.Answer,
		SettledBy: row.SettledBy, SettledAt: row.SettledAt, CreatedAt: row.CreatedAt,
	}, row.Rule)
}

func limitRequestOf(row db.LimitRequest, rule string) LimitRequest {
	out := LimitRequest{
		ID: row.ID, Subject: row.Subject, Rule: rule, Had: row.Had, Asked: row.Asked, Note: row.Note, State: row.State,
		Automatic: row.Automatic, GrantedUntil: row.GrantedUntil, Answer: row.Answer, SettledBy: row.SettledBy,
		SettledAt: row.SettledAt, CreatedAt: row.CreatedAt,
	}
	if row.Granted != nil {
		out.Granted = *row.Granted
	}
	return out
}
