package snapshot

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
)

const (
	// share is the part of the file that a tenant gets before all others had theirs: a quarter.
	share = 4
	// attempts is how often a tenant is read that changes meanwhile.
	attempts = 3
)

// pass writes the tenants of one file.
type pass struct {
	w        *Writer
	f        *File
	out      *output
	tooLarge map[limit.TenantID]tooLarge
	changing int // tenants that changed at each attempt
	unread   map[limit.TenantID]unread
	policy   int64 // where the policy of the tenant that was written last begins
	earlier  *File // of an earlier process, if it was needed and can be used
	looked   bool  // for earlier
}

// all writes the platform, whose rules every check needs, then the tenants that need at most their
// share, and then the others, as far as there is space. Otherwise one large tenant, which is used
// all the time, would leave no space for all others.
func (p *pass) all(ctx context.Context, list []tenants.Change) error {
	full := p.out.most
	var larger []tenants.Change
	platform := slices.IndexFunc(list, func(c tenants.Change) bool { return c.Tenant == p.w.Deployment.Platform })
	if platform >= 0 {
		if _, err := p.add(ctx, list[platform]); err != nil {
			return err
		}
	}
	for i, c := range list {
		if i == platform {
			continue
		}
		p.out.most = min(full, p.out.at+p.w.MaxBytes/share)
		fits, err := p.add(ctx, c)
		if err != nil {
			return err
		}
		if !fits && p.out.most < full {
			larger = append(larger, c)
		}
	}
	p.out.most = full
	for _, c := range larger {
		if _, err := p.add(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// add writes a tenant, or nothing of it, and reports whether there was space for it.
func (p *pass) add(ctx context.Context, c tenants.Change) (fits bool, err error) {
	begin, h := p.out.at, headOf(c)
	space := p.out.most - begin
	for _, known := range []tooLarge{p.w.tooLarge[c.Tenant], p.tooLarge[c.Tenant]} {
		if known.head == h && known.over >= space {
			p.tooLarge[c.Tenant] = known
			return false, nil
		}
	}
	if u, found := p.before(c); found {
		return p.unreadable(ctx, c, u)
	}
	for attempt := 1; ; attempt++ {
		h, err = p.tenant(ctx, h, attempt == attempts)
		if err == nil {
			p.place(block{head: h, begin: begin, read: p.f.TakenAt})
			delete(p.tooLarge, c.Tenant)
			return true, nil
		}
		if err := p.out.backTo(begin); err != nil {
			return false, err
		}
		if errors.Is(err, errChanged) {
			var now tenants.Change
			if now, err = p.w.Store.Versions(ctx, c.Tenant); err == nil {
				h = headOf(now)
				continue
			}
		}
		var failed *readError
		switch {
		case errors.As(err, &failed) && ctx.Err() == nil:
			return p.unreadable(ctx, c, unread{headOf(c), p.f.TakenAt, failed})
		case errors.Is(err, errFull):
			p.tooLarge[c.Tenant] = tooLarge{head: h, over: space}
			return false, nil
		case errors.Is(err, check.ErrUnknownTenant), errors.Is(err, tenants.ErrNotFound): // it was deleted or suspended in the meantime
			delete(p.tooLarge, c.Tenant)
			return true, nil
		default:
			return false, err
		}
	}
}

// place notes where the lines of a tenant are that were just written.
func (p *pass) place(b block) {
	b.policy, b.end = p.policy, p.out.at
	p.f.blocks[b.head.ID] = b
	p.f.Tenants = append(p.f.Tenants, b.head.ID)
}

// tenant writes the lines of a tenant, and returns the versions of what it has written. They are
// copied if the present file has the same versions. Unless anyway is set, it fails with errChanged
// if the rules and the subjects are not those of h, that is, of one instant. With anyway, the parts
// of a tenant that changes all the time are of different instants, as they also are, for a moment,
// in the memory of an instance. That is better than an older copy: each part is as new as the file,
// and no key is in it that was revoked before. The subjects then count as those of h, which is not
// later than any of them, so that the next file has them again.
func (p *pass) tenant(ctx context.Context, h head, anyway bool) (head, error) {
	if last := p.w.last; last != nil {
		if b, found := last.blocks[h.ID]; found && b.is(h) {
			p.policy = p.out.at + b.policy - b.begin
			return h, p.out.copy(io.NewSectionReader(last.file, b.begin, b.end-b.begin), b.end-b.begin)
		}
	}
	keys, version, err := p.w.Store.StoredKeys(ctx, h.ID)
	if err != nil {
		return h, ofStore(err)
	}
	policy, err := p.w.Store.LoadPolicy(ctx, h.ID)
	if err != nil {
		return h, ofStore(err)
	}
	changed := policy.Version != h.Policy
	if changed && !anyway {
		return h, errChanged
	}
	h.Keys, h.Policy = version, policy.Version
	if err := p.keys(h, keys); err != nil {
		return h, err
	}
	if err := p.out.add(line{Policy: &policy}); err != nil {
		return h, err
	}
	others, err := p.subjects(ctx, h, anyway)
	if err == nil && (changed || others) {
		p.changing++
	}
	return h, err
}

// keys writes the lines of a tenant before its policy.
func (p *pass) keys(h head, keys []tenants.StoredKey) error {
	if err := p.out.add(line{Tenant: &h}); err != nil {
		return err
	}
	for i := range keys {
		if err := p.out.add(line{Key: &keys[i]}); err != nil {
			return err
		}
	}
	p.policy = p.out.at
	return nil
}

// subjects writes the registered subjects of a tenant, and reports whether they are not all those
// of the version in h. That is an error unless anyway is set.
func (p *pass) subjects(ctx context.Context, h head, anyway bool) (changed bool, err error) {
	for after, more := "", true; more; {
		var failed error
		var read int64
		read, more, err = p.w.Store.ListSubjects(ctx, h.ID, after, func(d check.SubjectData) {
			if after = d.Subject; failed == nil {
				failed = p.out.add(line{Subject: &d})
			}
		})
		if err = errors.Join(ofStore(err), failed); err != nil {
			return false, err
		}
		changed = changed || read != h.Subjects
		if changed && !anyway {
			return false, errChanged
		}
	}
	return changed, nil
}

// output writes lines and knows how long the file is.
type output struct {
	file     *os.File
	to       *bufio.Writer
	at, most int64 // bytes
	text     bytes.Buffer
	lines    *json.Encoder // into text
}

func newOutput(file *os.File, most int64) *output {
	o := &output{file: file, to: bufio.NewWriterSize(file, 1<<20), most: most}
	o.lines = json.NewEncoder(&o.text)
	o.lines.SetEscapeHTML(false) // each such character would take six bytes
	return o
}

func (o *output) add(l any) error {
	o.text.Reset()
	if err := o.lines.Encode(l); err != nil {
		return err
	}
	if o.at+int64(o.text.Len()) > o.most {
		return errFull
	}
	o.at += int64(o.text.Len())
	_, err := o.to.Write(o.text.Bytes())
	return err
}

func (o *output) copy(from io.Reader, bytes int64) error {
	if o.at+bytes > o.most {
		return errFull
	}
	o.at += bytes
	_, err := io.Copy(o.to, from)
	return err
}

// backTo removes what was written from a place on.
func (o *output) backTo(at int64) error {
	err := o.to.Flush()
	if err == nil {
		err = o.file.Truncate(at)
	}
	if err == nil {
		_, err = o.file.Seek(at, io.SeekStart)
	}
	o.at = at
	return err
}
