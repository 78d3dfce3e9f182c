package snapshot

import (
	"context"
	"sync/atomic"

	"weir/internal/check"
	"weir/internal/limit"
)

// Source reads the configuration of tenants: from a File, until UseStore is called, and from then
// on from the store.
type Source struct {
	store check.PolicySource
	file  atomic.Pointer[File]
}

// NewSource returns a Source. file is nil if the store can be used from the beginning.
func NewSource(store check.PolicySource, file *File) *Source {
	s := &Source{store: store}
	s.file.Store(file)
	return s
}

// UseStore ends the use of the file. Tenants that were read from it must then be reloaded.
func (s *Source) UseStore() { s.file.Store(nil) }

// from returns the file if it is in use and has the tenant.
func (s *Source) from(tenant limit.TenantID) *File {
	if f := s.file.Load(); f != nil && f.Has(tenant) {
		return f
	}
	return nil
}

// LoadPolicy implements check.PolicySource.
func (s *Source) LoadPolicy(ctx context.Context, tenant limit.TenantID) (check.PolicyData, error) {
	if f := s.from(tenant); f != nil {
		return f.Policy(tenant)
	}
	return s.store.LoadPolicy(ctx, tenant)
}

// ListSubjects implements check.PolicySource. A file has all subjects in one page.
func (s *Source) ListSubjects(ctx context.Context, tenant limit.TenantID, after string, each func(check.SubjectData)) (version int64, more bool, err error) {
	if f := s.from(tenant); f != nil && after == "" {
		version, err = f.Subjects(tenant, each)
		return version, false, err
	}
	return s.store.ListSubjects(ctx, tenant, after, each)
}

// ChangedSubjects implements check.PolicySource. Changes come from the store only.
func (s *Source) ChangedSubjects(ctx context.Context, tenant limit.TenantID, since int64, after string, each func(check.SubjectData)) (version int64, next string, err error) {
	return s.store.ChangedSubjects(ctx, tenant, since, after, each)
}

var _ check.PolicySource = (*Source)(nil)
