package check

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

func (s *subjects) data(name string) (SubjectData, bool) {
	return (&Policy{subjects: s}).Subject(name)
}

// After any sequence of changes, each subject has the values that were stored last, and no subject
// is confused with another.
func TestSubjectsAfterRandomChanges(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		table, want := &subjects{}, map[string]SubjectData{}
		names := 1 << (2 + seed%10)
		for range 5000 {
			name := strings.Repeat("n", 1+random.IntN(limit.MaxNameBytes-8)) + fmt.Sprint(random.IntN(names))
			if random.IntN(3) > 0 {
				name = fmt.Sprint(random.IntN(names))
			}
			d := SubjectData{Subject: name, Plan: []string{"", "free", "pro"}[random.IntN(3)], State: SubjectState(random.IntN(3))}
			switch random.IntN(4) {
			case 0:
				d = SubjectData{Subject: name, Deleted: true}
			case 1:
				d.Overrides = []OverrideData{{Rule: fmt.Sprint(random.IntN(9)), Limit: limit.Limit{Limit: random.Int64N(1000)}}}
				if random.IntN(2) == 0 {
					d.Overrides[0].ExpiresAt = time.UnixMilli(random.Int64N(1 << 40)).Local()
				}
			}
			table.store(d)
			if d.Deleted {
				delete(want, name)
			} else {
				want[name] = d
			}
			if random.IntN(1000) == 0 {
				table.seal()
			}
		}
		for n := range names {
			got, there := table.data(fmt.Sprint(n))
			expected, known := want[fmt.Sprint(n)]
			require.Equal(t, known, there, "seed %d: %d", seed, n)
			require.Equal(t, expected, got, "seed %d", seed)
		}
		require.Equal(t, len(want), table.live)
		for name, expected := range want {
			got, there := table.data(name)
			require.True(t, there)
			require.Equal(t, expected, got)
		}
	}
}

// Checks read while subjects change: they see a subject before or after a change, never another
// subject.
func TestSubjectsAreReadWhileTheyChange(t *testing.T) {
	table := &subjects{}
	const names = 500
	name := func(n int) string { return fmt.Sprintf("subject-%d", n) }
	for n := range names {
		table.store(SubjectData{Subject: name(n), Plan: name(n) + "-a"})
	}
	var readers sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		readers.Go(func() {
			for n := 0; ; n = (n + 1) % names {
				select {
				case <-stop:
					return
				default:
				}
				// an even subject always exists, an odd one is added and deleted
				if e, ok := table.Load(name(n)); ok && !strings.HasPrefix(e.plan, name(n)+"-") || !ok && n%2 == 0 {
					panic(fmt.Sprintf("%s reads as %v %v", name(n), e, ok))
				}
			}
		})
	}
	random := rand.New(rand.NewPCG(1, 1))
	for i := range 30_000 {
		n := random.IntN(names)
		d := SubjectData{Subject: name(n), Plan: name(n) + "-" + fmt.Sprint(i%3)}
		if i%5 == 0 {
			d.Overrides = []OverrideData{{Rule: "r", Limit: limit.Limit{Limit: int64(i)}}}
		}
		if n%2 == 1 && i%2 == 0 {
			d = SubjectData{Subject: name(n), Deleted: true}
		}
		table.store(d)
		if i%5000 == 0 {
			table.seal()
		}
	}
	close(stop)
	readers.Wait()
}

// If subjects are added, changed and deleted forever, the table does not grow forever.
func TestSubjectsFreeDeletedEntries(t *testing.T) {
	table := &subjects{}
	var most int64
	for i := range 200_000 {
		table.store(SubjectData{Subject: fmt.Sprintf("subject-%09d", i), Overrides: []OverrideData{{Rule: "r", Limit: limit.Limit{Limit: 1}}}})
		table.store(SubjectData{Subject: fmt.Sprintf("subject-%09d", i), Overrides: []OverrideData{{Rule: "r", Limit: limit.Limit{Limit: 2}}}})
		if i >= 100 {
			table.store(SubjectData{Subject: fmt.Sprintf("subject-%09d", i-100), Deleted: true})
		}
		most = max(most, table.bytes())
	}
	require.Equal(t, 100, table.live)
	require.Less(t, most, int64(100_000), "of 100 subjects")
}

// The memory per subject is as documented in docs/operations.md.
func TestSubjectsAreSmall(t *testing.T) {
	const count = 200_000
	before := heapInUse()
	table := &subjects{}
	for i := range count {
		table.store(SubjectData{Subject: fmt.Sprintf("customer%08d", i), Plan: []string{"free", "pro", "business"}[i%3]})
	}
	table.seal()
	used := heapInUse() - before
	require.Less(t, used/count, int64(32), "bytes a subject")
	require.InEpsilon(t, used, table.bytes(), 0.05, "the estimate")
	for i := 0; i < count; i += 10 {
		table.store(SubjectData{Subject: fmt.Sprintf("customer%08d", i), Plan: "pro", Overrides: []OverrideData{{Rule: "api", Limit: limit.Limit{Limit: int64(i)}}}})
	}
	used = heapInUse() - before
	require.InEpsilon(t, used, table.bytes(), 0.15, "the estimate with overrides")
	runtime.KeepAlive(table)
}

// heapInUse returns the size of all reachable objects.
func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) // far below
}

func BenchmarkSubjects(b *testing.B) {
	table := &subjects{}
	names := make([]string, 1<<20)
	for i := range names {
		names[i] = fmt.Sprintf("customer%08d", i)
		table.store(SubjectData{Subject: names[i], Plan: "pro"})
	}
	table.seal()
	b.Run("registered", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if _, ok := table.Load(names[i*7919%len(names)]); !ok {
				b.Fatal("the subject does not exist")
			}
		}
	})
	b.Run("not registered", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if _, ok := table.Load(names[i*7919%len(names)][1:]); ok {
				b.Fatal("the subject exists")
			}
		}
	})
}
