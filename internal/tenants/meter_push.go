package tenants

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/tenants/db"
)

// MeterPush is what is sent to the provider's meter of a rule for one sealed hour: an event for
// each subject.
type MeterPush struct {
	ID          uuid.UUID
	Start       time.Time // of the hour
	Rule        string
	MeterEvent  string
	Kind        string // which units: units or overage
	Pushed      int64  // subjects that the provider has
	PushedUnits int64
	Parked      int64 // subjects whose customer is not known yet
	Failed      int64 // subjects that the provider refuses
	Complete    bool  // no subject is left, except the parked ones
	Why         string
	Attempts    int        // that failed in a row
	DueAt       *time.Time // of the next attempt; nil: none
	UpdatedAt   time.Time
	Problems    []MeterPushProblem // some of them
}

// MeterPushProblem is a subject that was not sent.
type MeterPushProblem struct {
	Subject string
	Units   int64
	Outcome string // parked or failed
	Why     string
}

// The outcomes of a subject that was not sent. A parked one is tried again.
const (
	PushParked = "parked"
	PushFailed = "failed"
)

// PushNoCustomer is why a subject is parked.
const PushNoCustomer = "the subject has no customer at a Stripe endpoint with an API key"

// MeterPushTask identifies a push that is due.
type MeterPushTask struct {
	Tenant, ID uuid.UUID
	Failed     bool // the last attempt did
}

// MeterPushWork is a part of a push for one server: the next subjects, or those that were parked.
type MeterPushWork struct {
	MeterPushTask
	Start      time.Time
	Rule       string
	MeterEvent string
	Attempts   int
	Now        time.Time
	// Unanswered is since when some of these subjects may have been sent without an answer: the
	// oldest attempt that counts. nil: they were not sent.
	Unanswered *time.Time
	Items      []MeterPushItem
	endpoints  []db.MeterEndpointsRow // to which events can be sent
	kind       string                 // which units: units or overage
	claimed    time.Time              // until when the part is this server's
	until      string                 // the last subject that Unanswered is about; "": any
	began      string                 // the last subject that was done before
	parked     bool                   // the items were parked before
	more       bool                   // others follow
	after      string                 // the last subject that is done
}

// MeterPushItem is the units of one subject.
type MeterPushItem struct {
	Subject  string
	Units    int64
	Customer string           // of the provider; "": not known
	Endpoint *BillingEndpoint // whose key sends; nil: not known
	// Unanswered is since when this item may have been sent without an answer. nil: as its work
	// says.
	Unanswered *time.Time
	// Outcome is "" if the item was sent, else parked or failed.
	Outcome, Why string
	// Sent reports that the provider may have received the item by this attempt.
	Sent bool
	// Rejected reports that the item is parked because its endpoint rejects it.
	Rejected bool
}

// Several reports whether there are others beside an endpoint of a mode that must not wait for it.
// What it rejects is then parked, so that they get theirs. Live ones wait for none of test mode,
// but those of test mode wait for a live one: its units are sent soon after its key works again.
func (w *MeterPushWork) Several(live *bool) bool {
	if isTest(live) {
		return len(w.endpoints) > 1
	}
	others := -1
	for _, e := range w.endpoints {
		if !isTest(e.Live) {
			others++
		}
	}
	return others > 0
}

// isTest reports whether an endpoint is of test mode. One of an unknown mode may be live.
func isTest(live *bool) bool { return live != nil && !*live }

// MeterAt is a meter at an endpoint as it was: each change of the endpoint has another version.
type MeterAt struct {
	Endpoint uuid.UUID
	Version  int64
	Event    string
}

// PushOldest is how old the units may be that the provider takes.
const PushOldest = 34 * 24 * time.Hour

const (
	pushChunk   = 160    // subjects at a time
	pushLooked  = 20_000 // subjects that are looked at for those with units to send
	pushLook    = 2000   // parked subjects that are looked at for those that have a customer now
	pushLease   = 5 * time.Minute
	pushSamples = 5 // problems in a list
)

// DueMeterPushes returns pushes that are due, at most most, the tenants in turn. Error:
// ErrUnavailable.
func (s *Store) DueMeterPushes(ctx context.Context, most int) (out []MeterPushTask, err error) {
	err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		out = nil
		step, err := s.turns.pushes.step(ctx, tx, meterPushTasks, s.instant(), most, nil)
		if err != nil {
			return err
		}
		rows, err := q.DueMeteredPushes(ctx, db.DueMeteredPushesParams{Tenants: step.tenants, OfTenant: step.share(most), Most: int32(most)})
		if err != nil {
			return err
		}
		s.turns.pushes.passed(step.last)
		for _, r := range rows {
			out = append(out, MeterPushTask{Tenant: r.TenantID, ID: r.ID, Failed: r.Attempts > 0})
		}
		return nil
	})
	return out, err
}

// PushResult is how a part of a push ended.
type PushResult struct {
	// Done is how many of the items, from the first, are settled by their Outcome.
	Done int
	// Why is why the others were not sent, "" if all are settled. They are tried again after Wait.
	Why  string
	Wait time.Duration
	// Parked is when parked items are tried again.
	Parked time.Duration
}

// SettleMeterPush records the outcome of a part of a push, unless the part is not this server's any
// more. Error: ErrUnavailable. In both cases the part is sent again with the same identifiers.
func (s *Store) SettleMeterPush(ctx context.Context, w *MeterPushWork, r PushResult) error {
	return s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		mine, err := q.LockMeteredPush(ctx, db.LockMeteredPushParams{TenantID: w.Tenant, ID: w.ID, Claimed: w.claimed})
		if err != nil || mine == 0 { // another server has claimed it, or the database was restored
			return err
		}
		next := db.AdvanceMeteredPushParams{TenantID: w.Tenant, ID: w.ID, Complete: w.parked, Why: r.Why}
		for i := range w.Items[:r.Done] {
			item := &w.Items[i]
			if err := w.settleItem(ctx, q, item, &next); err != nil {
				return err
			}
			next.AfterSubject = item.Subject
		}
		if err := w.noteUnsent(ctx, q, r.Done); err != nil {
			return err
		}
		due := w.Now
		switch {
		case r.Why != "":
			if r.Done == 0 {
				next.AfterSubject = w.began
			}
			next.Attempts, due = int32(w.Attempts+1), w.Now.Add(r.Wait)
			// The items that are left may have been sent by an attempt before this one, however
			// this one ended. The provider forgets the identifiers of the first one first.
			next.UnansweredAt, next.UnansweredUntil = w.Unanswered, w.until
			if until := w.sentUntil(r.Done); next.UnansweredAt == nil && until != "" {
				next.UnansweredAt, next.UnansweredUntil = &w.Now, until
			}
		case w.more:
			next.AfterSubject = w.after
			// Subjects that were not reached yet may have been sent before.
			if !w.parked && (w.until > w.after || w.until == "" && len(w.Items) == 0) {
				next.UnansweredAt, next.UnansweredUntil = w.Unanswered, w.until
			}
		default: // all subjects had their turn
			next.AfterSubject, next.Complete = "", true
			parked, err := q.MeteredPushHasProblems(ctx, db.MeteredPushHasProblemsParams{TenantID: w.Tenant, PushID: w.ID})
			if err != nil {
				return err
			}
			if !parked {
				return q.AdvanceMeteredPush(ctx, next)
			}
			due = w.Now.Add(r.Parked)
		}
		next.DueAt = &due
		return q.AdvanceMeteredPush(ctx, next)
	})
}

func (w *MeterPushWork) settleItem(ctx context.Context, q *db.Queries, item *MeterPushItem, next *db.AdvanceMeteredPushParams) error {
	if item.Outcome != "" {
		return w.putProblem(ctx, q, item, w.Unanswered)
	}
	next.Pushed++
	next.PushedUnits += item.Units
	if !w.parked && w.Unanswered == nil {
		return nil // it had no problem
	}
	return q.DeleteMeteredPushProblem(ctx, db.DeleteMeteredPushProblemParams{TenantID: w.Tenant, PushID: w.ID, Subject: item.Subject})
}

func (w *MeterPushWork) putProblem(ctx context.Context, q *db.Queries, item *MeterPushItem, unanswered *time.Time) error {
	return q.PutMeteredPushProblem(ctx, db.PutMeteredPushProblemParams{
		TenantID: w.Tenant, PushID: w.ID, Subject: item.Subject, Units: item.Units, Outcome: item.Outcome, Why: item.Why, UnansweredAt: unanswered,
	})
}

// sentUntil returns the last subject of the items from the first on that this attempt may have
// sent; "": none, or the items were parked before, which have a row each that says so.
func (w *MeterPushWork) sentUntil(first int) (until string) {
	if w.parked {
		return ""
	}
	for i := range w.Items[first:] {
		if item := &w.Items[first+i]; item.Sent {
			until = item.Subject
		}
	}
	return until
}

// noteUnsent records which of the items this attempt certainly did not send, where the push or
// noteAttempt says that it may have. An item may lose its customer before the next attempt, and get
// one again after the provider has forgotten the identifier. done of the items are settled.
func (w *MeterPushWork) noteUnsent(ctx context.Context, q *db.Queries, done int) error {
	if w.parked || w.Unanswered != nil { // then noteAttempt has marked the rows of all
		var unsent []string
		for i := range w.Items {
			if item := &w.Items[i]; item.Endpoint != nil && !item.Sent && (i >= done || item.Rejected) {
				unsent = append(unsent, item.Subject)
			}
		}
		if len(unsent) == 0 {
			return nil
		}
		return q.ClearAttemptedProblems(ctx, db.ClearAttemptedProblemsParams{TenantID: w.Tenant, PushID: w.ID, Now: &w.Now, Subjects: unsent})
	}
	until := w.sentUntil(done)
	for i := done; i < len(w.Items) && w.Items[i].Subject <= until; i++ {
		unsent := w.Items[i]
		switch {
		case unsent.Endpoint == nil:
			unsent.Outcome, unsent.Why = PushParked, PushNoCustomer
		case !unsent.Rejected:
			continue
		}
		if err := w.putProblem(ctx, q, &unsent, nil); err != nil {
			return err
		}
	}
	return nil
}

// MeterPushes lists pushes, of a rule or of all (""), newest hour first, and returns where the next
// page begins. Errors: *InvalidError, ErrUnavailable.
func (s *Store) MeterPushes(ctx context.Context, a Actor, rule string, p Page) (out []MeterPush, next string, err error) {
	before := MeteredItem{Start: s.instant().Add(48 * time.Hour)}
	if p.After != "" {
		if before, err = meteredPlace(p.After); err != nil {
			return nil, "", err
		}
	}
	if !plain(rule) {
		return nil, "", nil
	}
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		rows, err := q.ListMeteredPushes(ctx, db.ListMeteredPushesParams{
			TenantID: a.tenant, Rule: rule, BeforeStart: before.Start, BeforeRule: before.Rule, Most: p.most(),
		})
		if err != nil {
			return err
		}
		if size := int(p.most()) - 1; len(rows) > size {
			rows = rows[:size]
			last := MeteredItem{Start: rows[size-1].Start.UTC(), Rule: rows[size-1].Rule}
			next = last.place()
		}
		for _, r := range rows {
			push := MeterPush{
				ID: r.ID, Start: r.Start.UTC(), Rule: r.Rule, MeterEvent: r.MeterEvent, Kind: r.Kind, Pushed: r.Pushed, PushedUnits: r.PushedUnits,
				Parked: r.Parked, Failed: r.Failed, Complete: r.Complete, Why: r.Why, Attempts: int(r.Attempts), DueAt: r.DueAt, UpdatedAt: r.UpdatedAt,
			}
			if r.Parked+r.Failed > 0 {
				problems, err := q.MeteredPushProblems(ctx, db.MeteredPushProblemsParams{TenantID: a.tenant, PushID: r.ID, Most: pushSamples})
				if err != nil {
					return err
				}
				for _, x := range problems {
					push.Problems = append(push.Problems, MeterPushProblem{Subject: x.Subject, Units: x.Units, Outcome: x.Outcome, Why: x.Why})
				}
			}
			out = append(out, push)
		}
		return nil
	})
	return out, next, err
}

// State returns the outcome of the push in one word: pushed, parked, failed, retrying or pending.
func (p *MeterPush) State() string {
	switch {
	case p.Why != "":
		return "retrying"
	case !p.Complete:
		return "pending"
	case p.Failed > 0:
		return PushFailed
	case p.Parked > 0:
		return PushParked
	}
	return "pushed"
}

// Identifier identifies an item at the provider, so that it counts once however often it is sent.
func (w *MeterPushWork) Identifier(item *MeterPushItem) string {
	parts := []string{w.Tenant.String(), w.Rule, w.Start.Format(time.RFC3339), item.Subject}
	return "weir_" + uuid.NewSHA1(meterSpace, []byte(strings.Join(parts, "\x00"))).String()
}

var meterSpace = uuid.MustParse("3f5d6c1e-8a4b-4f0e-9a56-0d7c2f1b9e64")
