package snapshot

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"time"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/seal"
	"weir/internal/tenants"
)

// File is an open snapshot. Its methods are safe for concurrent use.
type File struct {
	Deployment Deployment
	TakenAt    time.Time
	Tenants    []limit.TenantID // the platform, then those whose keys were used last, then large ones

	file   *os.File
	blocks map[limit.TenantID]block
}

// block is where the lines of a tenant are.
type block struct {
	head       head
	begin, end int64 // bytes from the beginning of the file
	policy     int64 // where the line of the policy begins
	// When Postgres last had these versions. In a file of an earlier process, it is not known of
	// each tenant: when that file was written.
	read time.Time
	// It comes from a file of an earlier process, perhaps of another history: its versions say
	// nothing.
	earlier bool
}

// is reports whether the block has what Postgres has at these versions.
func (b *block) is(h head) bool { return b.head == h && !b.earlier }

// maxAhead is how far in the future a file may be: clocks are corrected. A file that is further
// ahead would be accepted for longer than its maximum age.
const maxAhead = 5 * time.Minute

// Open opens the file at path, which must be at most maxAge old and at most maxBytes long. It reads
// all of it, to verify its checksum. The error says why the file cannot be used.
func Open(path string, ring *seal.Ring, now time.Time, maxAge time.Duration, maxBytes int64) (f *File, err error) {
	opened, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = opened.Close() // it was only read
		}
	}()
	info, err := opened.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("it is not a regular file")
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("its mode is %#o: others may read or change it, so set it to 0600", info.Mode().Perm())
	case info.Size() > maxBytes:
		return nil, fmt.Errorf("it has %d bytes, more than %d", info.Size(), maxBytes)
	}
	f = &File{file: opened, blocks: map[limit.TenantID]block{}}
	head, err := f.index()
	if err != nil {
		return nil, err
	}
	switch age := now.Sub(head.TakenAt); {
	case age > maxAge:
		return nil, fmt.Errorf("it is %s old, more than %s", age.Truncate(time.Second), maxAge)
	case age < -maxAhead:
		return nil, fmt.Errorf("it was written %s in the future: a clock was or is wrong, so its age is unknown", (-age).Truncate(time.Second))
	}
	f.TakenAt = head.TakenAt
	secrets, err := ring.Open(head.Sealed, place)
	if err != nil {
		return nil, fmt.Errorf("its secrets cannot be decrypted: %w", err)
	}
	if err := strictly(secrets, &f.Deployment); err != nil {
		return nil, fmt.Errorf("its secrets cannot be read: %w", err)
	}
	return f, nil
}

// Close closes the file.
func (f *File) Close() error { return f.file.Close() }

// index verifies the checksum and notes where each tenant begins.
func (f *File) index() (first header, err error) {
	lines := &reader{in: bufio.NewReaderSize(f.file, 1<<20), sum: sha256.New()}
	text, err := lines.next()
	if err != nil {
		return first, err
	}
	// Another version may have other fields here, too.
	if err := json.Unmarshal(text, &first); err != nil || first.Format != formatName {
		return first, errors.New("it is not a configuration snapshot")
	}
	if first.Shape != shape {
		return first, errors.New("another version of the program has written it")
	}
	lines.sum.Write(text)
	var last *block
	var id limit.TenantID
	for {
		at := lines.at
		text, err := lines.next()
		if err != nil {
			return first, err
		}
		if bytes.HasPrefix(text, []byte(`{"sha256":`)) {
			if last != nil {
				last.end = at
				f.blocks[id] = *last
			}
			return first, lines.verify(text)
		}
		lines.sum.Write(text)
		if last != nil && bytes.HasPrefix(text, []byte(`{"policy":`)) {
			last.policy = at
		}
		if !bytes.HasPrefix(text, []byte(`{"tenant":`)) {
			continue
		}
		if last != nil {
			last.end = at
			f.blocks[id] = *last
		}
		var l line
		if err := strictly(text, &l); err != nil {
			return first, err
		}
		id, last = l.Tenant.ID, &block{head: *l.Tenant, begin: at, read: first.TakenAt, earlier: true}
		f.Tenants = append(f.Tenants, id)
	}
}

// reader reads lines and their checksum.
type reader struct {
	in  *bufio.Reader
	sum hash.Hash
	at  int64 // bytes that were read
}

// next returns a line with its end, until the next call.
func (r *reader) next() ([]byte, error) {
	text, err := r.in.ReadBytes('\n')
	r.at += int64(len(text))
	if err == io.EOF {
		return nil, errors.New("its end is missing")
	}
	return text, err
}

// verify compares the checksum of all lines with that of the last line, behind which nothing may
// follow.
func (r *reader) verify(last []byte) error {
	var is trailer
	if err := strictly(last, &is); err != nil {
		return err
	}
	if is.SHA256 != hex.EncodeToString(r.sum.Sum(nil)) {
		return errors.New("its checksum is wrong")
	}
	if _, err := r.in.ReadByte(); err != io.EOF {
		return errors.New("something follows its checksum")
	}
	return nil
}

// strictly parses one JSON value without unknown fields.
func strictly(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

// errSkip ends a walk over the lines of a tenant.
var errSkip = errors.New("skip")

// walk calls each for the lines of a tenant after the first one.
func (f *File) walk(tenant limit.TenantID, each func(line) error) (head, error) {
	b, found := f.blocks[tenant]
	if !found {
		return head{}, check.ErrUnknownTenant
	}
	d := json.NewDecoder(io.NewSectionReader(f.file, b.begin, b.end-b.begin))
	d.DisallowUnknownFields()
	for {
		var l line
		err := d.Decode(&l)
		if err == io.EOF {
			return b.head, nil
		}
		if err == nil && l.Tenant == nil {
			err = each(l)
		}
		if err == errSkip {
			return b.head, nil
		}
		if err != nil {
			return b.head, fmt.Errorf("read the configuration snapshot: %w", err)
		}
	}
}

// Has reports whether the file has a tenant.
func (f *File) Has(tenant limit.TenantID) bool {
	_, found := f.blocks[tenant]
	return found
}

// Keys returns the keys of a tenant, with their version.
func (f *File) Keys(tenant limit.TenantID) (keys []tenants.StoredKey, version int64, err error) {
	h, err := f.walk(tenant, func(l line) error {
		if l.Key == nil {
			return errSkip // they come first
		}
		keys = append(keys, *l.Key)
		return nil
	})
	return keys, h.Keys, err
}

// Policy returns the policy of a tenant.
func (f *File) Policy(tenant limit.TenantID) (data check.PolicyData, err error) {
	found := false
	_, err = f.walk(tenant, func(l line) error {
		if l.Policy != nil {
			data, found = *l.Policy, true
			return errSkip
		}
		return nil
	})
	if err == nil && !found {
		err = fmt.Errorf("read the configuration snapshot: tenant %s has no policy", tenant)
	}
	return data, err
}

// Subjects calls each for the registered subjects of a tenant, and returns their version.
func (f *File) Subjects(tenant limit.TenantID, each func(check.SubjectData)) (version int64, err error) {
	h, err := f.walk(tenant, func(l line) error {
		if l.Subject != nil {
			each(*l.Subject)
		}
		return nil
	})
	return h.Subjects, err
}
