package tenants

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/tenants/db"
)

// Notification is an event about a tenant, for the endpoints that the tenant has configured.
type Notification struct {
	Type string // one of NotificationTypes
	Data any    // becomes the object data of the body; at most 60 KiB as JSON
}

// The types of notifications.
const (
	QuotaReached        = "quota.reached"
	LimitRequestCreated = "limit_request.created"
	LimitRequestSettled = "limit_request.settled"
	SecurityEventAdded  = "security.event"
	// BillingEventsUnapplied says that events of a billing endpoint are parked or have failed, and
	// BillingEventsSettled that all of them were applied or dismissed.
	BillingEventsUnapplied = "billing_events.unapplied"
	BillingEventsSettled   = "billing_events.settled"
	// TestNotification is sent to one endpoint on request, whatever types it gets.
	TestNotification = "test"
)

// NotificationType describes a type.
type NotificationType struct{ Type, Text string }

// NotificationTypes lists the types that an endpoint can select.
var NotificationTypes = []NotificationType{
	{QuotaReached, "The tenant has used 80, 95 or 100 % of one of its own quotas"},
	{LimitRequestCreated, "A customer requests a higher limit"},
	{LimitRequestSettled, "Such a request was approved or refused"},
	{BillingEventsUnapplied, "Billing events are parked or have failed, so customers may have the wrong plan"},
	{BillingEventsSettled, "These events were applied or dismissed"},
	{SecurityEventAdded, "A security event: a sign-in, a new browser, a changed password, member or API key, an export"},
}

const (
	// maxNotifications is how many notifications a tenant may have in an hour. Further ones are not
	// stored, and counted at the endpoints.
	maxNotifications = 1000
	// maxSecurityNotifications is how many of them may be security events, of which any member can
	// cause many.
	maxSecurityNotifications = maxNotifications / 2
	// maxNotificationBytes limits a body.
	maxNotificationBytes = 64 << 10
	// NotificationRetention is how long a notification is kept, with its deliveries.
	NotificationRetention = 30 * 24 * time.Hour
)

// notificationBody is the body of a webhook, in the form that Standard Webhooks proposes.
type notificationBody struct {
	Type      string    `json:"type"`
	Timestamp time.Time `json:"timestamp"`
	Data      any       `json:"data"`
}

// Notify stores a notification for each endpoint of the tenant that gets its type. internal/notify
// sends it, at least once. Errors: ErrUnavailable.
func (s *Store) Notify(ctx context.Context, tenant uuid.UUID, n Notification) error {
	return s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		return notify(ctx, q, tenant, s.instant(), n)
	})
}

// notify is Notify in the transaction of a change: the notification is stored if the change is.
func (c *change) notify(ctx context.Context, n Notification) error {
	return notify(ctx, c.Queries, c.tenant, c.now, n)
}

// notify works as weir_system, and as weir_app in the tenant.
func notify(ctx context.Context, q *db.Queries, tenant uuid.UUID, now time.Time, n Notification) error {
	endpoints, err := q.EndpointsForNotification(ctx, db.EndpointsForNotificationParams{TenantID: tenant, Type: n.Type})
	if err != nil || len(endpoints) == 0 {
		return err
	}
	stored, err := q.CountRecentNotifications(ctx, db.CountRecentNotificationsParams{Type: n.Type, TenantID: tenant, Since: now.Add(-time.Hour)})
	if err != nil {
		return err
	}
	if stored.Recent >= maxNotifications || n.Type == SecurityEventAdded && stored.OfType >= maxSecurityNotifications {
		return q.RecordDroppedNotification(ctx, db.RecordDroppedNotificationParams{TenantID: tenant, Ids: endpoints, Now: &now})
	}
	_, err = insertNotification(ctx, q, tenant, now, n, endpoints)
	return err
}

// insertNotification stores a notification with its deliveries, and returns the id of the last one.
func insertNotification(ctx context.Context, q *db.Queries, tenant uuid.UUID, now time.Time, n Notification, endpoints []uuid.UUID) (delivery uuid.UUID, err error) {
	body, err := json.Marshal(notificationBody{n.Type, now, n.Data})
	if err != nil {
		return uuid.Nil, fmt.Errorf("encode a notification of type %s: %w", n.Type, err)
	}
	if len(body) > maxNotificationBytes {
		return uuid.Nil, fmt.Errorf("a notification of type %s has %d bytes, and may have %d", n.Type, len(body), maxNotificationBytes)
	}
	id := newID()
	if err := q.InsertNotification(ctx, db.InsertNotificationParams{TenantID: tenant, ID: id, Type: n.Type, Body: string(body), CreatedAt: now}); err != nil {
		return uuid.Nil, err
	}
	for _, endpoint := range endpoints {
		delivery = newID()
		if err := q.InsertNotificationDelivery(ctx, db.InsertNotificationDeliveryParams{
			TenantID: tenant, ID: delivery, EndpointID: endpoint, NotificationID: id, Now: now,
		}); err != nil {
			return uuid.Nil, err
		}
	}
	return delivery, nil
}

// quotaData is the data of quota.reached.
type quotaData struct {
	Rule     string    `json:"rule"`
	Percent  int       `json:"percent"`
	Used     int64     `json:"used"`
	Limit    int64     `json:"limit"`
	ResetsAt time.Time `json:"resets_at"`
}

// limitRequestData is the data of notifications about limit requests.
type limitRequestData struct {
	ID           string     `json:"id"`
	Subject      string     `json:"subject"`
	Rule         string     `json:"rule"`
	Limit        int64      `json:"limit"`
	Requested    int64      `json:"requested"`
	Note         string     `json:"note"`
	State        string     `json:"state"`
	Automatic    bool       `json:"automatic"`
	Granted      *int64     `json:"granted"`
	GrantedUntil *time.Time `json:"granted_until"`
}

func (c *change) notifyRequest(ctx context.Context, kind string, r *LimitRequest) error {
	data := limitRequestData{
		ID: r.ID.String(), Subject: r.Subject, Rule: r.Rule, Limit: r.Had, Requested: r.Asked, Note: r.Note, State: r.State,
		Automatic: r.Automatic, GrantedUntil: r.GrantedUntil,
	}
	if r.Granted > 0 {
		data.Granted = &r.Granted
	}
	return c.notify(ctx, Notification{Type: kind, Data: data})
}
