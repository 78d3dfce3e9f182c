package tenants

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/tenants/db"
)

// ClaimMeterPush takes the next part of a push, and gives this server five minutes for it. It
// returns nil if the push is not due any more. With an error and a part, PostponeMeterPush must be
// called: nothing is sent. Parked subjects are left alone while rejected says that their endpoint
// rejects the meter's events. Error: ErrUnavailable.
func (s *Store) ClaimMeterPush(ctx context.Context, task MeterPushTask, rejected func(MeterAt) bool) (work *MeterPushWork, err error) {
	err = s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		work = nil
		row, err := q.ClaimMeteredPush(ctx, db.ClaimMeteredPushParams{TenantID: task.Tenant, ID: task.ID, Lease: interval(pushLease)})
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		work = &MeterPushWork{
			MeterPushTask: task, Start: row.Start.UTC(), Rule: row.Rule, MeterEvent: row.MeterEvent, Attempts: int(row.Attempts), Now: row.Now,
			Unanswered: row.UnansweredAt, kind: row.Kind, claimed: *row.DueAt, began: row.AfterSubject, after: row.AfterSubject, parked: row.Complete,
		}
		// Earlier versions do not know it, and may have passed it.
		if work.Unanswered != nil && !work.parked && row.UnansweredUntil > work.began {
			work.until = row.UnansweredUntil
		}
		return nil
	})
	if err != nil || work == nil {
		return nil, err
	}
	// What follows needs none of the connections for tasks of all tenants: a tenant whose data are
	// slow to read uses its own share of the others.
	if err := s.read(ctx, AsSystem(work.Tenant, "billing"), work.read); err != nil {
		return work, err
	}
	if len(work.Items) == 0 && !work.parked {
		return work, nil
	}
	if err := s.customersOf(ctx, work, rejected); err != nil {
		return work, err
	}
	mine, err := s.noteAttempt(ctx, work)
	if err == nil && !mine {
		return nil, nil // it took so long that another server may have the part
	}
	return work, err
}

// noteAttempt records that subjects are sent from now on, before they are. Where this server dies,
// a subject may have lost its customer before the next attempt, and its units count as sent
// nevertheless. It returns false if the part is not this server's any more.
func (s *Store) noteAttempt(ctx context.Context, w *MeterPushWork) (mine bool, err error) {
	subjects := sendable(w.Items)
	if len(subjects) == 0 {
		return true, nil
	}
	err = s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		marked, err := q.BeginMeteredPush(ctx, db.BeginMeteredPushParams{TenantID: w.Tenant, ID: w.ID, Now: w.Now, Until: w.last(), Claimed: w.claimed})
		mine = marked == 1
		if err != nil || !mine || !w.parked && w.Unanswered == nil { // then they have no problems
			return err
		}
		return q.NoteUnansweredProblems(ctx, db.NoteUnansweredProblemsParams{TenantID: w.Tenant, PushID: w.ID, Now: &w.Now, Subjects: subjects})
	})
	return mine, err
}

// PostponeMeterPush records why a part of a push could not be sent at all. It is tried again after
// wait, and later parts of the tenant are not kept waiting for it. Error: ErrUnavailable.
func (s *Store) PostponeMeterPush(ctx context.Context, w *MeterPushWork, why string, wait time.Duration) error {
	return s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		return q.PostponeMeteredPush(ctx, db.PostponeMeteredPushParams{
			TenantID: w.Tenant, ID: w.ID, Claimed: w.claimed, Attempts: int32(w.Attempts + 1), Why: why, Wait: interval(wait),
			UnansweredAt: w.Unanswered, UnansweredUntil: w.until,
		})
	})
}

// last returns the last subject of a part, up to which it may have been sent; "" if the items were
// parked before, which have a row each that says so.
func (w *MeterPushWork) last() string {
	if w.parked || len(w.Items) == 0 {
		return ""
	}
	return w.Items[len(w.Items)-1].Subject
}

// sendable returns the subjects of the items that can be sent.
func sendable(items []MeterPushItem) (subjects []string) {
	for i := range items {
		if items[i].Endpoint != nil {
			subjects = append(subjects, items[i].Subject)
		}
	}
	return subjects
}

// read reads the items, which were not settled yet. Of very many subjects without units to send, it
// looks at some, and the next part continues behind them. A part that may have been sent without an
// answer is read as it was, and no other subject with it: those certainly were not sent.
func (w *MeterPushWork) read(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
	if w.parked {
		return nil // customersOf reads them
	}
	w.Items, w.after, w.more = nil, w.began, false
	// The planner may take a new hour for a small one, and would sort all of it.
	if err := enableSort(ctx, tx, "off"); err != nil {
		return err
	}
	for {
		if err := w.look(ctx, q); err != nil {
			return err
		}
		// What an earlier version may have sent is as many subjects as a part has, however far from
		// each other they are.
		unknown := w.Unanswered != nil && w.until == ""
		if !w.more || !unknown || len(w.Items) == 0 || len(w.Items) == pushChunk {
			return nil
		}
	}
}

// look adds those of the next subjects that have units to send.
func (w *MeterPushWork) look(ctx context.Context, q *db.Queries) error {
	missing := pushChunk - len(w.Items)
	rows, err := q.MeteredPushSubjects(ctx, db.MeteredPushSubjectsParams{
		TenantID: w.Tenant, Start: w.Start, Rule: w.Rule, Kind: w.kind, AfterSubject: w.after, Look: pushLooked, Most: int32(missing),
	})
	if err != nil {
		return err
	}
	began := w.after
	for _, r := range rows {
		if w.until != "" && r.Subject > w.until {
			w.after, w.more = w.until, true
			return nil
		}
		w.after = r.Subject
		w.Items = append(w.Items, MeterPushItem{Subject: r.Subject, Units: r.Units})
	}
	if w.more = true; len(rows) == missing {
		return nil
	}
	w.after, err = q.MeteredPushLookedUntil(ctx, db.MeteredPushLookedUntilParams{
		TenantID: w.Tenant, Start: w.Start, Rule: w.Rule, AfterSubject: began, Before: pushLooked - 1,
	})
	if errors.Is(err, pgx.ErrNoRows) { // it has looked at all
		w.more = false
		return nil
	}
	if w.until != "" {
		w.after = min(w.after, w.until)
	}
	return err
}

// readParked reads the items that were parked and can be settled now. There may be very many that
// still have no customer, or one of an endpoint that rejects its events: these are not read, so
// they cost little.
func (w *MeterPushWork) readParked(ctx context.Context, q *db.Queries, rejected func(MeterAt) bool) error {
	w.Items, w.after = nil, w.began
	until, err := q.MeteredPushProblemsUntil(ctx, db.MeteredPushProblemsUntilParams{TenantID: w.Tenant, PushID: w.ID, AfterSubject: w.began, Skip: pushLook})
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	w.more = err == nil
	rejecting := []uuid.UUID{}
	for _, e := range w.endpoints {
		if w.Several(e.Live) && rejected(MeterAt{e.ID, e.Version, w.MeterEvent}) {
			rejecting = append(rejecting, e.ID)
		}
	}
	rows, err := q.ParkedMeteredSubjects(ctx, db.ParkedMeteredSubjectsParams{
		TenantID: w.Tenant, PushID: w.ID, AfterSubject: w.began, Until: until, Every: w.Now.Sub(w.Start) > PushOldest, Most: pushChunk,
		Rejecting: rejecting,
	})
	for _, r := range rows {
		w.after = r.Subject
		w.Items = append(w.Items, MeterPushItem{Subject: r.Subject, Units: r.Units, Unanswered: r.UnansweredAt})
	}
	if len(rows) == pushChunk {
		w.more = true
	} else {
		w.after = until
	}
	return err
}

// customersOf finds the customer and the endpoint of each item. It also reads the items that were
// parked.
func (s *Store) customersOf(ctx context.Context, work *MeterPushWork, rejected func(MeterAt) bool) error {
	return s.read(ctx, AsSystem(work.Tenant, "billing"), func(ctx context.Context, _ pgx.Tx, q *db.Queries) (err error) {
		if work.endpoints, err = q.MeterEndpoints(ctx, work.Tenant); err != nil {
			return err
		}
		if work.parked {
			if err := work.readParked(ctx, q, rejected); err != nil || len(work.Items) == 0 {
				return err
			}
		}
		subjects := make([]string, len(work.Items))
		at := make(map[string]*MeterPushItem, len(work.Items))
		for i := range work.Items {
			subjects[i] = work.Items[i].Subject
			at[subjects[i]] = &work.Items[i]
		}
		rows, err := q.MeteredCustomers(ctx, db.MeteredCustomersParams{TenantID: work.Tenant, Subjects: subjects})
		if err != nil {
			return err
		}
		endpoints := map[string]*BillingEndpoint{}
		for _, r := range rows {
			if r.Endpoint == "" || r.Customer == "" {
				continue
			}
			e := endpoints[r.Endpoint]
			if e == nil {
				id, err := uuid.Parse(r.Endpoint)
				if err != nil {
					return err
				}
				read, err := readBillingEndpoint(ctx, q, work.Tenant, id)
				if err != nil {
					return err
				}
				e = &read
				endpoints[r.Endpoint] = e
			}
			at[r.Subject].Customer, at[r.Subject].Endpoint = r.Customer, e
		}
		return nil
	})
}
