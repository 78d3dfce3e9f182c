package tenants

import (
	"cmp"
	"context"
	"errors"

	"weir/internal/engine"
)

// onceEachStore is a counter store for one round, of which each server that does not answer is
// waited for once, however many tenants have credits there.
type onceEachStore struct {
	engine.CreditStore
	serverOf func(key string) engine.Server
	silent   map[engine.Server]error
}

// onceEach returns a counter store for one round, if it has servers.
func onceEach(counters engine.CreditStore) engine.CreditStore {
	servers, ok := counters.(interface {
		ServerOf(key string) engine.Server
	})
	if !ok {
		return counters
	}
	return &onceEachStore{CreditStore: counters, serverOf: servers.ServerOf, silent: map[engine.Server]error{}}
}

// OpenCredits implements engine.CreditStore.
func (s *onceEachStore) OpenCredits(ctx context.Context, openings ...*engine.Opening) (opened int, err error) {
	var asked []*engine.Opening
	for _, o := range openings {
		if o.Err = s.silent[s.serverOf(o.Key)]; o.Err == nil {
			asked = append(asked, o)
		} else {
			err = o.Err
		}
	}
	opened, failed := s.CreditStore.OpenCredits(ctx, asked...)
	for _, o := range asked {
		s.note(o, o.Err)
	}
	return opened, cmp.Or(err, failed)
}

// CloseCredits implements engine.CreditStore.
func (s *onceEachStore) CloseCredits(ctx context.Context, openings ...*engine.Opening) []error {
	errs := make([]error, len(openings))
	var asked []*engine.Opening
	var at []int // of each
	for i, o := range openings {
		if errs[i] = s.silent[s.serverOf(o.Key)]; errs[i] == nil {
			asked, at = append(asked, o), append(at, i)
		}
	}
	for n, err := range s.CreditStore.CloseCredits(ctx, asked...) {
		errs[at[n]] = err
		s.note(asked[n], err)
	}
	return errs
}

// note notes a server that has not answered in time. One that fails in another way takes no time.
func (s *onceEachStore) note(o *engine.Opening, err error) {
	var late interface{ Timeout() bool }
	if errors.As(err, &late) && late.Timeout() {
		s.silent[s.serverOf(o.Key)] = err
	}
}
