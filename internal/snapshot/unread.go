package snapshot

import (
	"context"
	"errors"
	"io"
	"time"

	"weir/internal/check"
	"weir/internal/tenants"
)

// One tenant that cannot be read, because it takes too long or is damaged, does not cost the others
// their file. If Postgres still answers a small question about it, only that tenant lacks its
// present state: for an hour it keeps its part of the present file, and then it is left out.
//
// Example: Postgres becomes slower and slower, and then fails. The large tenants can be read no
// longer some minutes before. An instance that starts afterwards has them as they were last read.

// keptFor is how long a tenant keeps a part that may be out of date.
const keptFor = time.Hour

// readError is an error of the store that says nothing about whether the tenant exists.
type readError struct{ error }

func (e *readError) Unwrap() error { return e.error }

// ofStore marks an error of the store, so that it differs from those of the file.
func ofStore(err error) error {
	if err == nil || errors.Is(err, check.ErrUnknownTenant) || errors.Is(err, tenants.ErrNotFound) {
		return err
	}
	return &readError{err}
}

// unreadable writes what there is of a tenant that could not be read. If Postgres does not answer
// either when it is asked for the versions of that tenant, unreadable returns cause: the present
// file is better than a new one.
func (p *pass) unreadable(ctx context.Context, c tenants.Change, cause *readError) (fits bool, err error) {
	_, err = p.w.Store.Versions(ctx, c.Tenant)
	if errors.Is(err, tenants.ErrNotFound) {
		delete(p.tooLarge, c.Tenant)
		return true, nil
	}
	if err != nil {
		return false, cause.error
	}
	begin := p.out.at
	kept, err := p.older(ctx, c)
	var failed *readError
	switch {
	case err == nil && kept:
	case err == nil, errors.As(err, &failed) && ctx.Err() == nil:
		if err := p.out.backTo(begin); err != nil {
			return false, err
		}
	case errors.Is(err, errFull):
		p.tooLarge[c.Tenant] = tooLarge{head: headOf(c), over: p.out.most - begin}
		return false, p.out.backTo(begin)
	default:
		return false, err
	}
	delete(p.tooLarge, c.Tenant)
	p.unread, p.cause = p.unread+1, cause.error
	return true, nil
}

// older writes the policy and the subjects that the present file has of a tenant, with its present
// keys: no key is in a file that was revoked before it. The versions are those of what is written,
// so that the next file tries to read the tenant. It reports whether there is something to write.
func (p *pass) older(ctx context.Context, c tenants.Change) (kept bool, err error) {
	if p.w.last == nil {
		return false, nil
	}
	b, found := p.w.last.blocks[c.Tenant]
	if !found || p.f.TakenAt.Sub(b.read) >= keptFor {
		return false, nil
	}
	keys, version, err := p.w.Store.StoredKeys(ctx, c.Tenant)
	if err != nil {
		return false, ofStore(err)
	}
	begin := p.out.at
	b.head.Keys = version
	if err := p.keys(b.head, keys); err != nil {
		return false, err
	}
	if err := p.out.copy(io.NewSectionReader(p.w.last.file, b.policy, b.end-b.policy), b.end-b.policy); err != nil {
		return false, err
	}
	p.place(begin, b.head, b.read)
	return true, nil
}
