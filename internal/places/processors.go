package places

import "github.com/google/uuid"

// Processors are the turns of an instance for work that uses a processor without a pause, by
// tenant. All kinds of such work share them: if each kind had turns of its own, a tenant that uses
// several kinds would have all processors, which checks need.
//
// On an instance with two or three processors, one holder has a turn for short work and one for
// long work at the same time.
type Processors struct {
	// Short is for work of up to some ten milliseconds: pages, bodies of up to 4 KiB, large
	// requests of the hot endpoints. There are turns for half of the processors.
	Short *Turns[uuid.UUID]
	// Long is for work of up to a second, such as large bodies and long lists, so that short work
	// does not wait for it. There are turns for a quarter of the processors.
	Long *Turns[uuid.UUID]
}

// maxLong is the maximum number of turns for long work, which needs much memory, too.
const maxLong = 4

// NewProcessors returns the turns of an instance with so many processors. A tenant may have half of
// the turns of a kind, and at least one.
func NewProcessors(processors int) *Processors {
	short, long := OnHalf(processors, processors), OnHalf(processors/2, maxLong)
	return &Processors{Short: NewTurns[uuid.UUID](short, short/2, 0), Long: NewTurns[uuid.UUID](long, long/2, 0)}
}
