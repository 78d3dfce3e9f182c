package billing

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/google/uuid"

	"weir/internal/subscription"
	"weir/internal/tenants"
)

// Metered usage is sent to the provider's meters: for each sealed hour and each rule with a meter,
// an event per subject. A push is a task like the others, with a row that remembers how far it is.
// It sends a part of the subjects, in order, and then stores their outcome. If a server dies
// in between, another one sends the same part again, with the same identifiers.

const (
	pushEvery  = 2 * time.Second // how often to look for pushes that are due
	pushAtOnce = 16              // events that are on their way at the same time
	// pushPlaces is of how many tenants parts are sent at the same time before there is only one of
	// each. Pushes that failed before have as many places of their own: most of them wait for a
	// provider that does not answer.
	pushPlaces  = 4
	pushBackoff = 2 * time.Second // after the first failure; it doubles
	pushLongest = time.Hour       // between two attempts
	// pushPause is how long a push waits whose failure could not be stored with it, and the time
	// between two failures of a tenant in the log.
	pushPause = time.Minute
	// Parked subjects are tried again after pushParked, then after as long as their hour is over,
	// and at the latest after pushParkedLongest: a subject that had no customer for a week rarely
	// gets one within an hour, and there may be very many, in each hour of a month.
	pushParked        = time.Hour
	pushParkedLongest = 24 * time.Hour
	// pushSure is how long the provider certainly recognises an identifier that it has received.
	pushSure = 23 * time.Hour
)

// pushUnread is why a part is not sent whose units or customers cannot be read.
const pushUnread = "the units cannot be read, for a reason that is in the log of this installation"

// runPushes sends metered usage until ctx ends.
func (r *Runner) runPushes(ctx context.Context) {
	ticker := time.NewTicker(pushEvery)
	defer ticker.Stop()
	for {
		_ = r.Push(ctx) // it is in the log
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// Push sends the metered usage that is due, and returns when nothing is due any more. Parts of
// several tenants are on their way at the same time, so that a provider that is slow for one tenant
// does not delay the others. It may thus take hours. A push that fails is tried again meanwhile.
func (r *Runner) Push(ctx context.Context) error {
	look := time.NewTicker(pushEvery)
	defer look.Stop()
	ended := make(chan endedPush)
	underway := 0
	failing := map[uuid.UUID]time.Time{} // when each is tried again
	var failed error
	for {
		begun, err := r.beginPushes(ctx, ended, failing)
		underway += begun
		if err != nil {
			failed = cmp.Or(failed, err)
			r.pushFailed(ctx, tenants.MeterPushTask{}, err)
		}
		if underway == 0 {
			return failed
		}
		select {
		case end := <-ended:
			underway--
			if end.err != nil {
				failing[end.task.ID] = r.Store.Now().Add(pushPause)
				failed = cmp.Or(failed, end.err)
				r.pushFailed(ctx, end.task, end.err)
			}
		case <-look.C: // others may be due meanwhile
		}
	}
}

// endedPush is the end of a part of a push. err is why its outcome is not known.
type endedPush struct {
	task tenants.MeterPushTask
	err  error
}

// pushFailed logs a failure, unless another one of the same tenant was logged within a minute. The
// failures of one tenant hide none of another's.
func (r *Runner) pushFailed(ctx context.Context, task tenants.MeterPushTask, err error) {
	now := r.Store.Now()
	r.pushLogMu.Lock()
	defer r.pushLogMu.Unlock()
	maps.DeleteFunc(r.pushLogged, func(_ uuid.UUID, at time.Time) bool { return !now.Before(at.Add(pushPause)) })
	if _, logged := r.pushLogged[task.Tenant]; logged || ctx.Err() != nil {
		return
	}
	r.pushLogged[task.Tenant] = now
	if task.Tenant == uuid.Nil {
		r.Logger.WarnContext(ctx, "cannot read due pushes of metered usage; trying again", "error", err)
		return
	}
	r.Logger.WarnContext(ctx, "cannot push metered usage; trying again", "tenant_id", task.Tenant, "push", task.ID, "error", err)
}

// beginPushes begins to send a part of each push that is due and for which there is a place, except
// those that failed just now. Each part reports its end on ended. Its tenant's data is read in its
// place, too: if that takes long or fails, only the tenant's own pushes wait.
func (r *Runner) beginPushes(ctx context.Context, ended chan<- endedPush, failing map[uuid.UUID]time.Time) (begun int, err error) {
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	due, err := r.Store.DueMeterPushes(ctx, page)
	if err != nil {
		return 0, err
	}
	now := r.Store.Now()
	maps.DeleteFunc(failing, func(_ uuid.UUID, until time.Time) bool { return !now.Before(until) })
	for _, task := range due {
		if _, wait := failing[task.ID]; wait {
			continue
		}
		places := r.pushes
		if task.Failed {
			places = r.repeats
		}
		leave, ok := places.TakeShare(task.Tenant, pushPlaces, 1)
		if !ok {
			continue
		}
		begun++
		go func() {
			err := r.pushPart(ctx, task)
			leave()
			ended <- endedPush{task, err}
		}()
	}
	return begun, nil
}

// pushPart sends a part of a push, if no other server does.
func (r *Runner) pushPart(ctx context.Context, task tenants.MeterPushTask) error {
	rejected := func(meter tenants.MeterAt) bool { return r.rejections.of(meter, r.Store.Now()) != "" }
	work, err := r.Store.ClaimMeterPush(ctx, task, rejected)
	if err != nil && work != nil && ctx.Err() == nil {
		return errors.Join(err, r.Store.PostponeMeterPush(ctx, work, pushUnread, pushWait(work.Attempts)))
	}
	if err != nil || work == nil {
		return err
	}
	return r.Store.SettleMeterPush(context.WithoutCancel(ctx), work, r.push(ctx, work))
}

// push sends a part of a push.
func (r *Runner) push(ctx context.Context, work *tenants.MeterPushWork) (result tenants.PushResult) {
	result.Parked = min(max(work.Now.Sub(work.Start.Add(time.Hour)), pushParked), pushParkedLongest)
	clients := map[uuid.UUID]*subscription.Client{}
	for result.Done < len(work.Items) {
		group := work.Items[result.Done:min(result.Done+pushAtOnce, len(work.Items))]
		failed := r.sendGroup(ctx, work, group, clients)
		r.parkRejected(work, group, failed)
		for i, err := range failed {
			switch {
			case err == nil, group[i].Outcome != "":
			case err.Refused:
				group[i].Outcome, group[i].Why = tenants.PushFailed, err.Why
			case result.Why == "":
				result.Why, result.Wait = err.Why, pushWait(work.Attempts)
			}
			if result.Why == "" {
				result.Done++
			}
		}
		if result.Why != "" {
			return result
		}
	}
	return result
}

// sendGroup sends the events of some items at the same time, except those that cannot be sent,
// whose outcome it sets. It returns why each of the others failed.
func (r *Runner) sendGroup(
	ctx context.Context, work *tenants.MeterPushWork, group []tenants.MeterPushItem, clients map[uuid.UUID]*subscription.Client,
) (failed []*subscription.MeterError) {
	failed = make([]*subscription.MeterError, len(group))
	var sending sync.WaitGroup
	for i := range group {
		item := &group[i]
		if item.Outcome, item.Why = unsendable(work, item); item.Outcome != "" {
			continue
		}
		if why := r.rejections.of(meterOf(work, item), r.Store.Now()); why != "" && work.Several(item.Endpoint.Live) {
			parkAt(item, why)
			continue
		}
		client := clients[item.Endpoint.ID]
		if client == nil {
			made, err := r.client(work.Tenant, *item.Endpoint)
			if err != nil {
				failed[i] = &subscription.MeterError{Rejected: true, Why: "the endpoint's API key cannot be read"}
				continue
			}
			client = made
			clients[item.Endpoint.ID] = client
		}
		sending.Go(func() {
			failed[i] = client.SendMeterEvent(ctx, subscription.MeterEvent{
				Name: work.MeterEvent, Customer: item.Customer, Value: item.Units, Identifier: work.Identifier(item),
				At: work.Start.Add(time.Hour - time.Second), // usage until the end of a period belongs to it
			})
		})
	}
	sending.Wait()
	for i, err := range failed {
		group[i].Sent = err == nil && group[i].Outcome == "" || err != nil && err.Unsure
	}
	return failed
}

// unsendable returns the outcome of an item that cannot be sent, and why.
func unsendable(work *tenants.MeterPushWork, item *tenants.MeterPushItem) (outcome, why string) {
	switch {
	case forgotten(work.Unanswered, work.Now), forgotten(item.Unanswered, work.Now):
		return tenants.PushFailed, "it may have been sent more than 23 hours ago without an answer: compare with the provider"
	case work.Now.Sub(work.Start) > tenants.PushOldest:
		return tenants.PushFailed, "the units are older than the provider takes"
	case item.Endpoint == nil:
		return tenants.PushParked, tenants.PushNoCustomer
	}
	return "", ""
}

// forgotten reports whether the provider may have forgotten the identifier of an event that it
// received at a time without an answer. nil: it received none.
func forgotten(unanswered *time.Time, now time.Time) bool {
	return unanswered != nil && now.Sub(*unanswered) > pushSure
}

// pushWait returns how long to wait after so many failures and one more.
func pushWait(failures int) time.Duration {
	return min(pushBackoff<<min(failures, 20), pushLongest)
}
