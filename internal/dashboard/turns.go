package dashboard

import (
	"context"
	"time"

	"github.com/google/uuid"

	"weir/internal/check"
	"weir/internal/places"
)

// The creation of a page from what was read takes some milliseconds of a processor: the comparison
// of fields in the audit trail, short simulations, HTML, and its compression. It takes turns among
// short work (places.Processors), on at most half of the processors, because checks need the
// others. The playground, which anybody can use, has turns like a tenant. Other pages without a
// tenant take those of the client's site (origin.Site).
//
// Large checks take turns among short work, too, and must not wait for long. So what takes more
// than some ten milliseconds is long work: replays, of up to 20 000 requests with each of two
// rules, and pages of more than fewRows.
//
// Nobody has a turn while it waits for Postgres, for Redis or for a browser, and nobody takes a
// second turn while it has one, for which it could wait forever.

// playgroundTurns stands for a tenant in the turns of the playground.
var playgroundTurns = uuid.UUID{15: 1}

// turnWait is how long a page waits for each of its turns.
const turnWait = 2 * time.Second

// fewRows is how many rows a page among short work has: limits of a subject, or cells of the
// matrix of plans. 1000 limits have 670 KB of HTML, which take up to 40 ms.
const fewRows = 250

// pageTurns are the turns of one instance for one kind of work.
type pageTurns struct {
	turns *places.Turns[uuid.UUID]
	wait  time.Duration
}

func newPageTurns(turns *places.Turns[uuid.UUID]) pageTurns { return pageTurns{turns, turnWait} }

// do calls f when it is the tenant's turn. f must only compute, and must not call do. Error:
// errBusy; f was not called.
func (p *pageTurns) do(ctx context.Context, tenant uuid.UUID, f func()) error {
	leave, err := p.turns.TakeWithin(ctx, tenant, p.wait)
	if err != nil {
		return errBusy
	}
	defer leave()
	f()
	return nil
}

// always is do for what must not be refused: it calls f after the wait, too.
func (p *pageTurns) always(tenant uuid.UUID, f func()) {
	defer p.turns.TryWithin(tenant, p.wait)()
	f()
}

// inspect returns the live limits of a subject, in turns if there are many rules.
func (d *dashboard) inspect(ctx context.Context, policy *check.Policy, values check.Request) (check.SubjectLimits, error) {
	return d.Checker.InspectInTurns(ctx, policy, values, func() (func(), error) {
		leave, err := d.turns.turns.TakeWithin(ctx, policy.Tenant(), d.turns.wait)
		if err != nil {
			return nil, errBusy
		}
		return leave, nil
	})
}

// await is do for what no request waits for: it waits as long as ctx lasts. Error: that of ctx.
func (p *pageTurns) await(ctx context.Context, tenant uuid.UUID, f func()) error {
	leave, err := p.turns.Take(ctx, tenant)
	if err != nil {
		return err
	}
	defer leave()
	f()
	return nil
}
