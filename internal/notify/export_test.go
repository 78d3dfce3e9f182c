package notify

import (
	"context"
	"sync"
	"time"

	"weir/internal/tenants"
)

// Once sends what is due now, one delivery of each endpoint after the other until one fails, and
// returns after that.
func (s *Sender) Once(ctx context.Context) error {
	var all sync.WaitGroup
	err := s.look(ctx)
	for s.start(ctx, &all) > 0 {
		all.Wait()
	}
	return err
}

// Turns are for tests of them alone.
type Turns struct{ *turns }

func NewTurns(now func() time.Time) *Turns { return &Turns{newTurns(now)} }

func (t *Turns) Offer(due []tenants.DeliveryTask)             { t.offer(due) }
func (t *Turns) Take() []tenants.DeliveryTask                 { return t.take() }
func (t *Turns) Leave(task tenants.DeliveryTask, more bool)   { t.leave(task, more) }
func (t *Turns) Judge(task tenants.DeliveryTask, inTime bool) { t.judge(task, inTime) }

var (
	WaitAfter  = waitAfter
	RetryAfter = retryAfter
	Control    = control
)
