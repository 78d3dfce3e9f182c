package tenants

import (
	"context"
	"fmt"
	"time"

	"weir/internal/engine"
	"weir/internal/limit"
	"weir/internal/origin"
	"weir/internal/throttle"
)

// The limits for invitations, first ones and repeated ones, of the API and the dashboard together:
// nobody can fill mailboxes or the queue of mails. The first ones are by the address of the client
// and its networks, so that a person with many tenants has no more; the last ones by that of the
// invited person. They hold without mail, too, because the link is passed on then. Their algorithms
// can return what an invitation counted that was not created.
//
// The first invitation of a person by a tenant in a day counts for first-of-tenant and
// first-of-person, and a repeated one for person. So the repeats of a few tenants cannot keep a
// person from being invited by others, and a mailbox still gets a bounded number of mails.
var inviteRules = append(throttle.ByNetwork(
	limit.Rule{Slug: "tenant-address", Algorithm: limit.SlidingWindowCounter, Limit: 100, Window: throttle.Every(time.Hour)},
	limit.Rule{Slug: "address", Algorithm: limit.SlidingWindowCounter, Limit: 100, Window: throttle.Every(time.Hour)},
	limit.Rule{Slug: "tenant", Algorithm: limit.TokenBucket, Limit: 200, Window: throttle.Every(24 * time.Hour)},
), []limit.Rule{
	{Slug: "tenant-person", Algorithm: limit.FixedWindowFirstHit, Limit: 10, Window: throttle.Every(24 * time.Hour)},
	{Slug: "first-of-tenant", Algorithm: limit.FixedWindowFirstHit, Limit: 1, Window: throttle.Every(24 * time.Hour)},
	{Slug: "first-of-person", Algorithm: limit.TokenBucket, Limit: 100, Window: throttle.Every(24 * time.Hour)},
	{Slug: "person", Algorithm: limit.TokenBucket, Limit: 20, Window: throttle.Every(24 * time.Hour)},
}...)

// InvitationsError means that a limit for invitations is reached. It does not say which one: the
// limit for an invited person counts the invitations of other tenants.
type InvitationsError struct{ RetryAfter time.Duration }

func (e *InvitationsError) Error() string {
	return fmt.Sprintf("too many invitations; retry in %s", e.RetryAfter)
}

// LimitInvitations makes all instances with the same counters and keys count invitations together.
// Without it, each process counts its own.
func (s *Store) LimitInvitations(counters engine.Engine, key throttle.Namer) {
	s.invitations.Store(throttle.New("invite", counters, key, s.now, inviteRules...))
}

// mayInvite counts an invitation of this person, or returns an *InvitationsError. The caller must
// call end with the error of the invitation: one that is not created does not count.
func (s *Store) mayInvite(ctx context.Context, a Actor, email string) (end func(err error), err error) {
	tenant, both := a.tenant.String(), ""
	var names [3]string // unknown
	if from, ok := ctx.Value(originKey{}).(Origin); ok && from.Address != "" {
		names = origin.WithinHost(from.Address).Names()
		both = tenant + " " + names[0]
	}
	person := CanonicalEmail(email)
	pair := tenant + " " + person
	try, wait := s.invitations.Load().Begin(ctx, both, names[0], names[1], names[2], tenant, pair, pair, person, "")
	if try == nil {
		var again time.Duration
		if try, again = s.invitations.Load().Begin(ctx, both, names[0], names[1], names[2], tenant, pair, "", "", person); try == nil {
			return nil, &InvitationsError{min(wait, again)}
		}
	}
	return func(err error) {
		if err != nil {
			try.Undecided(ctx)
		}
	}, nil
}
