package tenants

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/tenants/db"
)

// States of a delivery.
const (
	DeliveryPending   = "pending"
	DeliveryDelivered = "delivered"
	DeliveryParked    = "parked" // given up; it can be replayed
)

// DeliveryStates lists the states.
var DeliveryStates = []string{DeliveryPending, DeliveryDelivered, DeliveryParked}

const (
	// deliveryLease is how long one server has for one attempt.
	deliveryLease = time.Minute
	// deliverFor is how long attempts are repeated, from the creation or the replay.
	deliverFor = 24 * time.Hour
	// maxReason and maxAnswer limit what is kept of an answer, in characters.
	maxReason = 300
	maxAnswer = 200
)

// NotificationDelivery is a notification on its way to one endpoint.
type NotificationDelivery struct {
	ID          uuid.UUID
	Endpoint    uuid.UUID
	URL         string // of the endpoint
	WebhookID   string // the same for all attempts
	Type        string
	State       string // one of DeliveryStates
	Attempts    int
	DueAt       *time.Time // of the next attempt
	AttemptedAt *time.Time
	SettledAt   *time.Time
	Status      int // of the latest answer; 0: none
	Why         string
	Answer      string // the beginning of its body
	CreatedAt   time.Time
	Body        string // only of NotificationDelivery
}

func webhookID(notification uuid.UUID) string { return "msg_" + hex.EncodeToString(notification[:]) }

// DeliveryFilter selects deliveries. Zero values match all.
type DeliveryFilter struct {
	Endpoint    *uuid.UUID
	State, Type string
}

// NotificationDeliveries lists deliveries, newest first, and returns where the next page begins.
func (s *Store) NotificationDeliveries(ctx context.Context, a Actor, f DeliveryFilter, p Page) (out []NotificationDelivery, next string, err error) {
	after, err := p.after()
	if err != nil {
		return nil, "", err
	}
	if !plain(f.Type) {
		return nil, "", nil
	}
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		rows, err := q.NotificationDeliveries(ctx, db.NotificationDeliveriesParams{
			TenantID: a.tenant, EndpointID: f.Endpoint, State: f.State, Type: f.Type, After: after, Most: p.most(),
		})
		rows, next = cut(p, rows, func(r db.NotificationDeliveriesRow) uuid.UUID { return r.ID })
		out = make([]NotificationDelivery, len(rows))
		for i, r := range rows {
			out[i] = deliveryOf(r)
			out[i].URL = a.shownURL(r.Url)
		}
		return err
	})
	return out, next, err
}

func deliveryOf(r db.NotificationDeliveriesRow) NotificationDelivery {
	out := NotificationDelivery{
		ID: r.ID, Endpoint: r.EndpointID, URL: r.Url, WebhookID: webhookID(r.NotificationID), Type: r.Type, State: r.State, Attempts: int(r.Attempts),
		DueAt: r.DueAt, AttemptedAt: r.AttemptedAt, SettledAt: r.SettledAt, Why: r.Why, Answer: r.Answer, CreatedAt: r.CreatedAt,
	}
	if r.Status != nil {
		out.Status = int(*r.Status)
	}
	return out
}

// NotificationDelivery returns a delivery with its body, or ErrNotFound.
func (s *Store) NotificationDelivery(ctx context.Context, a Actor, id uuid.UUID) (out NotificationDelivery, err error) {
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		out, err = readDelivery(ctx, q, a.tenant, id)
		out.URL = a.shownURL(out.URL)
		return err
	})
	return out, err
}

func readDelivery(ctx context.Context, q *db.Queries, tenant, id uuid.UUID) (NotificationDelivery, error) {
	r, err := q.NotificationDeliveryByID(ctx, db.NotificationDeliveryByIDParams{TenantID: tenant, ID: id})
	if err != nil {
		return NotificationDelivery{}, err
	}
	out := deliveryOf(db.NotificationDeliveriesRow{
		TenantID: r.TenantID, ID: r.ID, EndpointID: r.EndpointID, NotificationID: r.NotificationID, State: r.State, Attempts: r.Attempts, DueAt: r.DueAt,
		BeganAt: r.BeganAt, AttemptedAt: r.AttemptedAt, SettledAt: r.SettledAt, Status: r.Status, Why: r.Why, Answer: r.Answer, CreatedAt: r.CreatedAt,
		Type: r.Type, Url: r.Url,
	})
	out.Body = r.Body
	return out, nil
}

// TestNotificationEndpoint sends a notification of type test to an endpoint, also to a disabled
// one. Errors: ErrNotFound, ErrForbidden, *ConflictError.
func (s *Store) TestNotificationEndpoint(ctx context.Context, a Actor, id uuid.UUID) (out NotificationDelivery, err error) {
	err = s.change(ctx, a, MayManage, func(ctx context.Context, c *change) error {
		e, err := c.notificationEndpoint(ctx, id, Match{})
		if err != nil {
			return err
		}
		recent, err := c.CountRecentNotifications(ctx, db.CountRecentNotificationsParams{TenantID: c.tenant, Since: c.now.Add(-time.Hour)})
		if err != nil {
			return err
		}
		if recent.Recent >= maxNotifications {
			return &ConflictError{CodeConflict, "the tenant has had too many notifications in the last hour: try again later"}
		}
		delivery, err := insertNotification(ctx, c.Queries, c.tenant, c.now, Notification{TestNotification, struct {
			Endpoint string `json:"endpoint"`
		}{id.String()}}, []uuid.UUID{id})
		if err != nil {
			return err
		}
		if err := c.recordSending("test", &e, TestNotification); err != nil {
			return err
		}
		out, err = readDelivery(ctx, c.Queries, c.tenant, delivery)
		return err
	})
	return out, err
}

// recordSending writes a row of the trail about something that is sent to an endpoint.
func (c *change) recordSending(action string, e *NotificationEndpoint, kind string) error {
	after, err := json.Marshal(struct {
		ID   string `json:"id"`
		Type string `json:"type"`
	}{e.ID.String(), kind})
	c.trail.actions = append(c.trail.actions, auditRow{action: action, kind: auditNotified, target: MaskedURL(e.URL), after: after})
	return err
}

// ReplayNotification sends a delivery again, with the same webhook-id, whatever its outcome was.
// Errors: ErrNotFound, ErrForbidden.
func (s *Store) ReplayNotification(ctx context.Context, a Actor, id uuid.UUID) (out NotificationDelivery, err error) {
	err = s.change(ctx, a, MayManage, func(ctx context.Context, c *change) error {
		old, err := readDelivery(ctx, c.Queries, c.tenant, id)
		if err != nil {
			return err
		}
		e, err := c.notificationEndpoint(ctx, old.Endpoint, Match{})
		if err != nil {
			return err
		}
		if err := c.ReplayNotificationDelivery(ctx, db.ReplayNotificationDeliveryParams{TenantID: c.tenant, ID: id, Now: c.now}); err != nil {
			return err
		}
		if err := c.recordSending("replay", &e, old.Type); err != nil {
			return err
		}
		out, err = readDelivery(ctx, c.Queries, c.tenant, id)
		return err
	})
	return out, err
}

// clipped returns a text without control characters, and at most so many characters of it.
func clipped(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if utf8.RuneCountInString(text) > most {
		return string([]rune(text)[:most])
	}
	return text
}

// DeliveryTask names an endpoint that has something to send.
type DeliveryTask struct{ Tenant, Endpoint uuid.UUID }

// DueDeliveries lists endpoints with deliveries that are due, at most most. If there are more, the
// next call lists those of the following tenants. Error: ErrUnavailable.
func (s *Store) DueDeliveries(ctx context.Context, most int) (out []DeliveryTask, err error) {
	err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		out = nil
		step, err := q.DeliveryTurns(ctx, db.DeliveryTurnsParams{After: s.turns.deliveries.after(), Now: s.instant(), LookAt: turnsLookedAt, Most: int32(most)})
		if err != nil {
			return err
		}
		s.turns.deliveries.passed(step.Next)
		for i, tenant := range step.Tenants {
			out = append(out, DeliveryTask{tenant, step.Endpoints[i]})
		}
		return nil
	})
	return out, err
}

// MostDeliveryBacklog is up to how many deliveries are counted. Each instance does it every second.
const MostDeliveryBacklog = 10_000

// DeliveryBacklog returns how many deliveries of all tenants wait, at most MostDeliveryBacklog.
// Error: ErrUnavailable.
func (s *Store) DeliveryBacklog(ctx context.Context) (n int64, err error) {
	err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		if err := enableSort(ctx, tx, "off"); err != nil { // else see turn.step
			return err
		}
		n, err = q.NotificationBacklog(ctx, MostDeliveryBacklog)
		return err
	})
	return n, err
}

// DeliveryWork is one attempt of a delivery.
type DeliveryWork struct {
	DeliveryTask
	ID        uuid.UUID
	WebhookID string
	Type      string
	Body      string
	URL       string
	Enabled   bool
	Secrets   []string // that sign it, the newest first
	Attempt   int      // 1, 2, 3, ...
	Now       time.Time
	began     time.Time
}

// ClaimDelivery takes the next delivery of an endpoint that is due, and gives this server a minute
// for it. It returns nil if there is none. Errors: ErrUnavailable; one about the encryption key
// comes with a DeliveryWork, which can only be settled.
func (s *Store) ClaimDelivery(ctx context.Context, task DeliveryTask) (*DeliveryWork, error) {
	var work *DeliveryWork
	var unreadable error
	err := s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		work, unreadable = nil, nil
		now := s.instant()
		lease := now.Add(deliveryLease)
		r, err := q.ClaimNotificationDelivery(ctx, db.ClaimNotificationDeliveryParams{TenantID: task.Tenant, EndpointID: task.Endpoint, Now: &now, Lease: &lease})
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		work = &DeliveryWork{
			DeliveryTask: task, ID: r.ID, WebhookID: webhookID(r.NotificationID), Type: r.Type, Body: r.Body, URL: r.Url, Enabled: r.Enabled,
			Attempt: int(r.Attempts), Now: now, began: r.BeganAt,
		}
		work.Secrets, unreadable = s.openNotificationSecrets(task.Tenant, task.Endpoint, r.Secrets)
		if len(work.Secrets) > 1 && (r.PreviousUntil == nil || !r.PreviousUntil.After(now)) {
			work.Secrets = work.Secrets[:1]
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return work, unreadable
}

// DeliveryResult is how an attempt ended.
type DeliveryResult struct {
	Delivered bool
	Status    int    // of the answer; 0: none
	Why       string // why it was not delivered
	Answer    string // the beginning of the answer's body
	Final     bool   // another attempt is useless
	Wait      time.Duration
	// Disable says why the endpoint is to be disabled; "": it is not.
	Disable string
}

// SettleDelivery records the outcome of an attempt, and returns the state of the delivery. Error:
// ErrUnavailable; the delivery is then sent again when its lease ends.
func (s *Store) SettleDelivery(ctx context.Context, w *DeliveryWork, r DeliveryResult) (state string, err error) {
	p := db.SettleNotificationDeliveryParams{
		TenantID: w.Tenant, ID: w.ID, Attempts: int32(w.Attempt), State: DeliveryPending, Why: clipped(r.Why, maxReason), Answer: clipped(r.Answer, maxAnswer),
	}
	if status := int32(r.Status); status != 0 {
		p.Status = &status
	}
	now := s.instant()
	next := now.Add(r.Wait)
	switch {
	case r.Delivered:
		p.State, p.Why, p.SettledAt = DeliveryDelivered, "", &now
	case r.Final || next.After(w.began.Add(deliverFor)):
		p.State, p.SettledAt = DeliveryParked, &now
	default:
		p.DueAt = &next
	}
	err = s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		_, err := q.SettleNotificationDelivery(ctx, p)
		return err
	})
	if err != nil || r.Disable == "" {
		return p.State, err
	}
	_, err = s.EditNotificationEndpoint(ctx, AsSystem(w.Tenant, "notifications"), w.Endpoint, Match{}, func(e *NotificationEndpoint) error {
		e.Enabled, e.DisabledWhy = false, clipped(r.Disable, maxReason)
		return nil
	})
	if errors.Is(err, ErrNotFound) {
		err = nil
	}
	return p.State, err
}
