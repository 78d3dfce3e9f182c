package tenants

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// A customer of a billing system is one subject: a billing_ref that a subject has is not given to
// another one. Subjects of earlier releases that share one keep it; events of the customer are for
// the first of them by name.

// checkBillingRef refuses to give a subject a reference that another subject has. old is the
// reference that it has now.
func (c *change) checkBillingRef(ctx context.Context, subject, ref, old string) error {
	if ref == old {
		return nil
	}
	other, err := c.otherWithRef(ctx, subject, ref)
	if err != nil || other == "" {
		return err
	}
	return invalid("billing_ref", refTaken(other))
}

// otherWithRef returns another subject that has a reference, or "".
func (c *change) otherWithRef(ctx context.Context, subject, ref string) (string, error) {
	if ref == "" {
		return "", nil
	}
	holders, err := c.refHolders(ctx, []string{ref})
	if err != nil {
		return "", err
	}
	for _, name := range holders[ref] {
		if name != subject {
			return name, nil
		}
	}
	return "", nil
}

// refHolders returns the subjects that have each of these references.
func (c *change) refHolders(ctx context.Context, refs []string) (map[string][]string, error) {
	refs = slices.DeleteFunc(slices.Clone(refs), func(ref string) bool { return ref == "" || !plain(ref) }) // Postgres cannot store NUL
	if len(refs) == 0 {
		return nil, nil
	}
	rows, err := c.SubjectsByBillingRefs(ctx, db.SubjectsByBillingRefsParams{TenantID: c.tenant, Refs: refs})
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return nil, err
	}
	holders := make(map[string][]string, len(rows))
	for _, row := range rows {
		holders[row.BillingRef] = append(holders[row.BillingRef], row.Subject)
	}
	return holders, nil
}

func refTaken(subject string) *limit.Problem {
	return limit.Wrong("Use another one, or remove it from that subject first.", "is the billing_ref of subject %q: a customer is one subject", subject)
}

// refClaims checks the references of several subjects that are written together: a subject may take
// over the reference that another one of them gives up.
type refClaims struct {
	gives   map[string]string   // the references that the writes give, by subject
	holders map[string][]string // the subjects that have these references before the writes
	taken   map[string]string   // the subject that a reference was given to, by reference
}

// taker returns the other subject because of which a subject cannot get a reference, or "".
func (r *refClaims) taker(subject, ref, old string) string {
	if ref == "" || ref == old {
		return ""
	}
	if other, given := r.taken[ref]; given && other != subject {
		return other
	}
	for _, holder := range r.holders[ref] {
		if given, written := r.gives[holder]; holder != subject && (!written || given == ref) {
			return holder
		}
	}
	r.taken[ref] = subject
	return ""
}

// checkRefs refuses a document that gives two subjects the same reference.
func (c *change) checkRefs(ctx context.Context, r *revision) error {
	claims := refClaims{gives: map[string]string{}, taken: map[string]string{}}
	var refs []string
	for _, s := range r.subjects {
		claims.gives[s.Subject.Subject] = s.BillingRef
		if s.old == nil || s.old.BillingRef != s.BillingRef {
			refs = append(refs, s.BillingRef)
		}
	}
	for i := range r.gone {
		claims.gives[r.gone[i].Subject] = ""
	}
	var err error
	if claims.holders, err = c.refHolders(ctx, refs); err != nil {
		return err
	}
	for i, s := range r.subjects {
		old := ""
		if s.old != nil {
			old = s.old.BillingRef
		}
		if other := claims.taker(s.Subject.Subject, s.BillingRef, old); other != "" {
			r.wrong(fmt.Sprintf("subjects.%d.billing_ref", i), refTaken(other))
		}
	}
	return nil
}
