package tenants

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/jackc/pgx/v5"

	"weir/internal/tenants/db"
)

// ErrWrongAddress: the key does not work from the address of the request.
var ErrWrongAddress = errors.New("the key does not work from this address")

// again reads the actor's key or membership again, and returns the actor as the next request would
// have it. Between the time when a request was authenticated and its change, its body arrives and
// the change waits for others: meanwhile the key may have been revoked, or the member removed. The
// caller holds a lock that the end of the actor's rights needs as well, that of the tenant or of
// the end of its trail, so what is read stays true. It runs as weir_app in the actor's tenant.
//
// The server and its commands, billing systems, and actors without permissions, such as a person
// who joins, have nothing that could be read. The methods for the latter check them.
//
// Errors: those of Authenticate; ErrWrongAddress; ErrForbidden.
func (a Actor) again(ctx context.Context, q *db.Queries, now time.Time) (Actor, error) {
	switch {
	case a.kind == KeyActor:
		return a.keyAgain(ctx, q, now)
	case a.kind == MemberActor && a.scopes != 0:
		return a.memberAgain(ctx, q)
	}
	return a, nil
}

func (a Actor) keyAgain(ctx context.Context, q *db.Queries, now time.Time) (Actor, error) {
	row, err := q.KeyOfActor(ctx, db.KeyOfActorParams{TenantID: a.tenant, ID: a.id})
	if errors.Is(err, pgx.ErrNoRows) {
		return Actor{}, ErrUnknownKey
	}
	if err != nil {
		return Actor{}, err
	}
	k := knownKeyOf(db.LookUpKeyRow(row), reading{})
	if err := k.refusal(now); err != nil {
		return Actor{}, err
	}
	origin, _ := ctx.Value(originKey{}).(Origin)
	if from, err := netip.ParseAddr(origin.Address); err == nil && !k.actor.MayConnect(from) {
		return Actor{}, ErrWrongAddress
	}
	return k.actor, nil
}

func (a Actor) memberAgain(ctx context.Context, q *db.Queries) (Actor, error) {
	row, err := q.MemberOfActor(ctx, db.MemberOfActorParams{TenantID: a.tenant, ID: a.id})
	if errors.Is(err, pgx.ErrNoRows) {
		return Actor{}, ErrForbidden
	}
	if err != nil {
		return Actor{}, err
	}
	session := Session{Email: a.name, Current: &Membership{TenantID: a.tenant, MemberID: a.id, Slug: row.Slug, Role: Role(row.Role)}}
	return session.Actor(), nil
}

// mayStill returns the actor as the next request would have it, if it has the right.
func (a Actor) mayStill(ctx context.Context, q *db.Queries, right Right, now time.Time) (Actor, error) {
	a, err := a.again(ctx, q, now)
	if err == nil && !a.May(right) {
		err = ErrForbidden
	}
	return a, err
}
