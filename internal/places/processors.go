package places

import (
	"math"

	"github.com/google/uuid"
)

// Processors are the turns of an instance for work that uses a processor without a pause, by
// tenant. All kinds of such work share them: if each kind had turns of its own, a tenant that uses
// several kinds would have all processors, which checks need.
//
// On an instance with fewer than fewProcessors, a tenant also has only one turn of both kinds at
// the same time, and with two, one of all three while batches leave a processor to others and many
// of its own wait: few ones, such as those of a gateway, do not wait for its long work. So its
// short work can wait for its long work, but that of others does not: for short work, the tenant's
// own one is waited for first, and for long work at last. There, long work is before the short work
// of its tenant: it already has a turn of its kind, and these are few.
type Processors struct {
	// Short is for work of up to some ten milliseconds: pages, bodies of up to 4 KiB, large
	// requests of the hot endpoints. There are turns for half of the processors.
	Short *Turns[uuid.UUID]
	// Long is for work of up to a second, such as large bodies and long lists, so that short work
	// does not wait for it. There are turns for a quarter of the processors.
	Long *Turns[uuid.UUID]
	// Batches is for batches of checks: up to a millisecond between two waits for others. There is
	// a turn for each processor, so that a tenant that is alone loses nothing. While there are
	// several, one leaves a processor to others (LeaveOneWhile): Go's runtime looks for what has
	// arrived on connections when a processor has nothing to do, and otherwise every 10 ms.
	Batches *Turns[uuid.UUID]
}

// fewProcessors are so many that one turn of each kind leaves half of them to checks.
const fewProcessors = 4

// maxLong is the maximum number of turns for long work, which needs much memory, too.
const maxLong = 4

// NewProcessors returns the turns of an instance with so many processors. A tenant may have half of
// the turns of a kind, and at least one.
func NewProcessors(processors int) *Processors {
	short, long := OnHalf(processors, processors), OnHalf(processors/2, maxLong)
	p := &Processors{
		Short: NewTurns[uuid.UUID](short, short/2, 0), Long: NewTurns[uuid.UUID](long, long/2, 0),
		Batches: NewTurns[uuid.UUID](processors, processors, 0),
	}
	if processors < fewProcessors {
		single := NewTurns[uuid.UUID](math.MaxInt, 1, 0)
		p.Short.single, p.Short.singleFirst, p.Long.single = single, true, single
		if processors <= 2 {
			p.Batches.single, p.Batches.singleFirst, p.Batches.leavesSingle = single, true, true
		}
	}
	return p
}
