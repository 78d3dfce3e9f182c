package check

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

// changingSource has three pages of changes for each tenant in paged, of one subject each. The
// later ones begin and end when a test says so.
type changingSource struct {
	fakeSource
	paged  map[limit.TenantID]bool
	states map[string]SubjectState
	since  []int64             // of each page
	begun  chan limit.TenantID // a later page has begun
	end    chan struct{}
}

func newChangingSource(tenants ...limit.TenantID) *changingSource {
	s := &changingSource{paged: map[limit.TenantID]bool{}, states: map[string]SubjectState{}}
	s.begun, s.end = make(chan limit.TenantID), make(chan struct{})
	s.data, s.subjAt = map[limit.TenantID]PolicyData{}, 1
	for _, tenant := range tenants {
		s.data[tenant] = PolicyData{Version: 1}
	}
	return s
}

func (s *changingSource) ChangedSubjects(ctx context.Context, t limit.TenantID, since int64, after string, each func(SubjectData)) (int64, string, error) {
	if !s.paged[t] {
		return s.fakeSource.ChangedSubjects(ctx, t, since, after, each)
	}
	if after != "" {
		select {
		case s.begun <- t:
		case <-ctx.Done():
		}
		select {
		case <-s.end:
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since = append(s.since, since)
	name := map[string]string{"": "a", "a": "b", "b": "c"}[after]
	each(SubjectData{Subject: name, State: s.states[name]})
	if name == "c" {
		return s.subjAt, "", nil
	}
	return s.subjAt, name, nil
}

func loadAll(t *testing.T, p *Policies, tenants ...limit.TenantID) {
	t.Helper()
	for _, tenant := range tenants {
		require.NoError(t, p.Preload(t.Context(), tenant))
	}
}

// Changes of very many overrides hold the places of changes for one page only: those of other
// tenants took effect only after them, many seconds later.
func TestLargeChangesHoldNoPlacesOfOthers(t *testing.T) {
	t.Parallel()
	a, b, c := uuid.New(), uuid.New(), uuid.New()
	source := newChangingSource(a, b, c)
	source.paged[a], source.paged[b] = true, true
	p, _ := newPolicies(source)
	defer p.Close()
	loadAll(t, p, a, b, c)
	for range cap(p.queues.long) { // large first loads, which changes do not wait for
		p.queues.long <- struct{}{}
	}
	for _, tenant := range []limit.TenantID{a, b} {
		p.Changed(tenant, 1, 2)
		require.Equal(t, tenant, <-source.begun)
	}
	require.Empty(t, p.queues.changes)
	require.Len(t, p.queues.further, 2)
	source.set(func() { source.data[c] = PolicyData{Version: 2} })
	p.Changed(c, 2, 1)
	require.NoError(t, p.Settle(t.Context(), c))
	require.EqualValues(t, 2, p.Loaded(c).Version())
	close(source.end)
	for range 2 { // the third pages
		<-source.begun
	}
	require.NoError(t, p.Settle(t.Context(), a))
	require.NoError(t, p.Settle(t.Context(), b))
	require.Empty(t, p.queues.further)
}

// Between two pages of changes, those of another tenant that wait have the place: changes of large
// tenants can follow each other for as long as somebody makes them.
func TestLargeChangesLetOthersPass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := uuid.New()
		source := newChangingSource(a)
		source.paged[a] = true
		p, _ := newPolicies(source)
		defer p.Close()
		loadAll(t, p, a)
		entered := make(chan *reading, 1)
		for range cap(p.queues.further) - 1 {
			p.queues.further <- struct{}{}
		}
		p.Changed(a, 1, 2)
		<-source.begun
		go func() {
			r, _ := p.queues.enter(context.Background(), p.queues.further)
			entered <- r
		}()
		synctest.Wait()
		source.end <- struct{}{}
		synctest.Wait()
		select {
		case <-source.begun:
			t.Fatal("the next page is read before the one who waits")
		case r := <-entered:
			r.end()
		}
		<-source.begun
		close(source.end)
		require.NoError(t, p.Settle(t.Context(), a))
	})
}

// A change that is made between two pages is not lost, also if its subject was in the page before.
func TestChangesBetweenPages(t *testing.T) {
	t.Parallel()
	a := uuid.New()
	source := newChangingSource(a)
	source.paged[a], source.subjAt = true, 1
	p, _ := newPolicies(source)
	defer p.Close()
	loadAll(t, p, a)
	source.set(func() { source.subjAt = 2 })
	p.Changed(a, 1, 2)
	<-source.begun
	source.set(func() {
		source.subjAt, source.states["a"], source.states["c"] = 3, Blocked, Exempt
	})
	p.Changed(a, 1, 3)
	close(source.end)
	for range 3 { // the third page, and those of the next read
		<-source.begun
	}
	require.NoError(t, p.Settle(t.Context(), a))
	require.Equal(t, []int64{1, 1, 1, 2, 2, 2}, source.since)
	for name, state := range map[string]SubjectState{"a": Blocked, "b": Active, "c": Exempt} {
		subject, registered := p.Loaded(a).Subject(name)
		require.True(t, registered, name)
		require.Equal(t, state, subject.State, name)
	}
}

// New rules are used when all changes of subjects that may belong to them are. Until then, subjects
// with a plan that was deleted with these changes keep its limits.
func TestRulesFollowTheirSubjects(t *testing.T) {
	t.Parallel()
	a := uuid.New()
	source := newChangingSource(a)
	source.paged[a] = true
	source.data[a] = PolicyData{Version: 1, Plans: []PlanData{{Slug: "old"}, {Slug: "new"}}}
	p, _ := newPolicies(source)
	defer p.Close()
	loadAll(t, p, a)
	source.set(func() {
		source.data[a] = PolicyData{Version: 2, Plans: []PlanData{{Slug: "new"}}}
		source.subjAt = 2
	})
	p.Changed(a, 2, 2)
	for range 2 { // the later pages
		<-source.begun
		require.EqualValues(t, 1, p.Loaded(a).Version())
		require.Contains(t, p.Loaded(a).plans, "old")
		source.end <- struct{}{}
	}
	require.NoError(t, p.Settle(t.Context(), a))
	require.EqualValues(t, 2, p.Loaded(a).Version())
	require.NotContains(t, p.Loaded(a).plans, "old")
}
