package snapshot

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"time"

	"weir/internal/check"
	"weir/internal/tenants"
)

// One tenant that cannot be read, because it takes too long or is damaged, does not cost the others
// their file. If Postgres still answers a small question about it, only that tenant lacks its
// present state: it keeps its part of the present file until that is as old as a file may be at a
// start, and is then left out. The present file may be of an earlier process. Without that, an
// instance that starts while a tenant cannot be read would remove the tenant from the file at once.
//
// Example: Postgres becomes slower and slower, and then fails. The large tenants can be read no
// longer some minutes before. An instance that starts afterwards has them as they were last read.

// unreadFor is how long a tenant that could not be read is not read again, unless it changes. Each
// such read takes as long as a read may, and the others wait for it.
const unreadFor = 5 * time.Minute

// unread is a tenant that could not be read.
type unread struct {
	head  head
	at    time.Time
	cause *readError
}

// holds reports whether the tenant has not changed since, and is not to be read again yet.
func (u unread) holds(c tenants.Change, now time.Time) bool {
	since := now.Sub(u.at)
	return u.head == headOf(c) && since >= 0 && since < unreadFor
}

// before returns what is known of a tenant that could not be read shortly before, and has not
// changed since.
func (p *pass) before(c tenants.Change) (u unread, found bool) {
	u, found = p.w.unread[c.Tenant]
	return u, found && u.holds(c, p.f.TakenAt)
}

// keeps reports whether a tenant that cannot be read may still keep its part of the file.
func (w *Writer) keeps(b block, now time.Time) bool { return now.Sub(b.read) < w.MaxAge }

// unchanged reports whether the new file has nothing that the present one has not, because the
// tenants that were tried again could still not be read. Then it is not needed: otherwise one such
// tenant would cost a new file, with all others, at each attempt.
func (p *pass) unchanged() bool {
	last := p.w.last
	if last == nil || p.changing > 0 || p.w.moving || p.f.TakenAt.Sub(last.TakenAt) >= writeLatest {
		return false
	}
	return maps.EqualFunc(p.unread, p.w.unread, func(a, b unread) bool { return a.head == b.head }) &&
		maps.EqualFunc(p.tooLarge, p.w.tooLarge, func(a, b tooLarge) bool { return a.head == b.head }) &&
		maps.EqualFunc(p.f.blocks, last.blocks, func(a, b block) bool { return a.head == b.head && a.earlier == b.earlier })
}

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
// either when it is asked for the versions of that tenant, unreadable returns the cause: the
// present file is better than a new one. So it is, for an hour, if the keys of a tenant that is in
// it cannot be read: the fault is then hardly that of the tenant.
func (p *pass) unreadable(ctx context.Context, c tenants.Change, u unread) (fits bool, err error) {
	now, err := p.w.Store.Versions(ctx, c.Tenant)
	if errors.Is(err, tenants.ErrNotFound) {
		delete(p.tooLarge, c.Tenant)
		return true, nil
	}
	if err != nil {
		return false, u.cause.error
	}
	begin := p.out.at
	kept, err := p.older(ctx, now)
	var failed *readError
	switch {
	case err == nil && kept:
	case err == nil:
		if err := p.out.backTo(begin); err != nil {
			return false, err
		}
	case errors.As(err, &failed) && ctx.Err() == nil:
		if p.f.TakenAt.Sub(p.present().TakenAt) < writeLatest {
			return false, u.cause.error
		}
		if err := p.out.backTo(begin); err != nil {
			return false, err
		}
		u.at = time.Time{} // the next pass reads it again
	case errors.Is(err, errFull):
		p.tooLarge[c.Tenant] = tooLarge{head: headOf(c), over: p.out.most - begin}
		return false, p.out.backTo(begin)
	default:
		return false, err
	}
	delete(p.tooLarge, c.Tenant)
	p.unread[c.Tenant] = u
	return true, nil
}

// older writes the policy and the subjects that the present file has of a tenant, with its present
// keys: no key is in a file that was revoked before it. The versions are those of what is written,
// so that the next file tries to read the tenant. It reports whether there is something to write.
func (p *pass) older(ctx context.Context, c tenants.Change) (kept bool, err error) {
	last := p.present()
	if last == nil {
		return false, nil
	}
	b, found := last.blocks[c.Tenant]
	if !found || !p.w.keeps(b, p.f.TakenAt) {
		return false, nil
	}
	begin, from := p.out.at, b.begin
	if last == p.w.last && b.head.Keys == c.KeysVersion { // in another history, other keys may have that version
		p.policy = begin + b.policy - b.begin
	} else {
		keys, version, err := p.w.Store.StoredKeys(ctx, c.Tenant)
		if err != nil {
			return false, ofStore(err)
		}
		b.head.Keys = version
		if err := p.keys(b.head, keys); err != nil {
			return false, err
		}
		from = b.policy
	}
	if err := p.out.copy(io.NewSectionReader(last.file, from, b.end-from), b.end-from); err != nil {
		return false, err
	}
	p.place(block{head: b.head, begin: begin, read: b.read, earlier: b.earlier})
	return true, nil
}

// present returns the present file, which may be of an earlier process; nil: none that can be used.
func (p *pass) present() *File {
	if p.w.last == nil && !p.looked {
		p.looked = true
		p.earlier, _ = Open(p.w.Path, p.w.Ring, p.f.TakenAt, p.w.MaxAge, p.w.MaxBytes) // or there is none
	}
	return cmp.Or(p.w.last, p.earlier)
}

// forget closes the file of an earlier process.
func (p *pass) forget() {
	if p.earlier != nil {
		_ = p.earlier.Close() // it was only read
	}
}
