package api

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// The endpoints that notices about the tenant are sent to, and the deliveries. They are not called
// webhooks, because /v1/webhooks takes the webhooks of billing systems.

// NotificationEndpoint is an address that gets notifications, as the API shows it.
type NotificationEndpoint struct {
	ID                  string     `json:"id" format:"uuid"`
	URL                 string     `json:"url" format:"uri" doc:"For keys that may not set it only its scheme and host, such as https://hooks.example.com/***, because the rest may be a secret"`
	Description         string     `json:"description"`
	Types               []string   `json:"types" nullable:"false" doc:"The types of notifications that it gets; empty: all"`
	Enabled             bool       `json:"enabled" doc:"A disabled endpoint gets tests only"`
	DisabledReason      *string    `json:"disabled_reason" doc:"Why Weir disabled it; null: it did not"`
	SecretLast4         string     `json:"secret_last4" doc:"The last four characters of the signing secret"`
	PreviousSecretUntil *time.Time `json:"previous_secret_until" doc:"Until when the previous secret signs, too; null: there is none"`
	Dropped             int64      `json:"dropped" doc:"Notifications that were not sent, because the tenant had too many in an hour"`
	DroppedAt           *time.Time `json:"dropped_at" doc:"When that happened last; null: never"`
	CreatedAt           time.Time  `json:"created_at"`
	UpdatedAt           time.Time  `json:"updated_at"`
	Version             int64      `json:"version"`
}

// NotificationEndpointCreated is an endpoint with a new signing secret.
type NotificationEndpointCreated struct {
	NotificationEndpoint
	Secret        string `json:"secret,omitempty" doc:"The signing secret; shown once"`
	SecretOmitted bool   `json:"secret_omitted,omitempty" doc:"true in a replayed answer, which has no secret: rotate it"`
}

// NotificationEndpointFields are the optional fields of an endpoint.
type NotificationEndpointFields struct {
	Description Optional[string]   `json:"description,omitempty" doc:"Up to 200 characters; null: none"`
	Types       Optional[[]string] `json:"types,omitempty" doc:"Such as quota.reached; null or empty (default): all"`
	Enabled     Optional[bool]     `json:"enabled,omitempty" doc:"null: true (default)"`
}

// NotificationEndpointCreate is the body of POST /v1/notification-endpoints.
type NotificationEndpointCreate struct {
	URL string `json:"url" doc:"An https address of up to 2048 ASCII characters"`
	NotificationEndpointFields
}

// NotificationEndpointPatch is the merge patch of PATCH /v1/notification-endpoints/{id}.
type NotificationEndpointPatch struct {
	URL Optional[string] `json:"url,omitempty" doc:"An https address of up to 2048 ASCII characters"`
	NotificationEndpointFields
}

// NotificationEndpointRotate is the body of a rotation.
type NotificationEndpointRotate struct {
	Overlap Optional[string] `json:"overlap,omitempty" doc:"How long the present secret signs, too: a duration from 0s to 30d; default 24h"`
}

// NotificationEndpointPath names an endpoint.
type NotificationEndpointPath struct {
	ID string `path:"id" doc:"Id of the notification endpoint"`
}

// NotificationDelivery is a notification on its way to an endpoint, as the API shows it.
type NotificationDelivery struct {
	ID          string     `json:"id" format:"uuid"`
	Endpoint    string     `json:"endpoint" format:"uuid" doc:"Id of the notification endpoint"`
	WebhookID   string     `json:"webhook_id" doc:"The header webhook-id of all attempts"`
	Type        string     `json:"type"`
	State       string     `json:"state" enum:"pending,delivered,parked" doc:"parked: given up; it can be replayed"`
	Attempts    int64      `json:"attempts" doc:"Since it was created or replayed"`
	Status      *int64     `json:"status" doc:"Status of the latest answer; null: there was none"`
	Why         string     `json:"why" doc:"Why the latest attempt failed"`
	Answer      string     `json:"answer" doc:"The first 200 characters of the latest answer"`
	NextAt      *time.Time `json:"next_at" doc:"Time of the next attempt; null: there is none"`
	AttemptedAt *time.Time `json:"attempted_at" doc:"null: not yet"`
	SettledAt   *time.Time `json:"settled_at" doc:"When it was delivered or parked; null: not yet"`
	CreatedAt   time.Time  `json:"created_at"`
}

// NotificationDeliveryDetail is a delivery with what is sent.
type NotificationDeliveryDetail struct {
	NotificationDelivery
	Body string `json:"body" doc:"The body exactly as it is signed"`
}

// NotificationDeliveriesQuery selects deliveries.
type NotificationDeliveriesQuery struct {
	PageParams
	Endpoint string `query:"endpoint" doc:"Id of a notification endpoint"`
	State    string `query:"state" enum:"pending,delivered,parked"`
	Type     string `query:"type" doc:"Such as quota.reached"`
}

// NotificationDeliveryPath names a delivery.
type NotificationDeliveryPath struct {
	ID string `path:"id" doc:"Id of the delivery"`
}

// notificationRoutes adds the operations of notifications.
func (a *admin) notificationRoutes() {
	tag := about("notifications", "")
	list(a, "/v1/notification-endpoints", "list-notification-endpoints", "List notification endpoints", a.listNotificationEndpoints, tag)
	create(a, "/v1/notification-endpoints", "create-notification-endpoint", "Create a notification endpoint", a.createNotificationEndpoint, about(
		"notifications", "Notices about the tenant are sent to it, signed as Standard Webhooks says. The answer has the signing secret, which is not shown again."), redacts(redactNotificationEndpoint))
	read(a, "/v1/notification-endpoints/{id}", "get-notification-endpoint", "Get a notification endpoint", a.getNotificationEndpoint, tag)
	patch(a, "/v1/notification-endpoints/{id}", "patch-notification-endpoint", "Change a notification endpoint", a.patchNotificationEndpoint, tag)
	remove(a, "/v1/notification-endpoints/{id}", "delete-notification-endpoint", "Delete a notification endpoint and its deliveries", a.deleteNotificationEndpoint, tag)
	create(a, "/v1/notification-endpoints/{id}/rotate", "rotate-notification-secret", "Replace the signing secret of an endpoint", a.rotateNotificationSecret, about(
		"notifications", "Both secrets sign for the time of overlap."), redacts(redactNotificationEndpoint))
	act(a, "/v1/notification-endpoints/{id}/test", "test-notification-endpoint", "Send a test to an endpoint", a.testNotificationEndpoint, about(
		"notifications", "The delivery shows the outcome, usually within a second."))
	list(a, "/v1/notification-deliveries", "list-notification-deliveries", "List deliveries of notifications", a.listNotificationDeliveries, tag)
	show(a, "/v1/notification-deliveries/{id}", "get-notification-delivery", "Get a delivery with its body", a.getNotificationDelivery, tag)
	act(a, "/v1/notification-deliveries/{id}/replay", "replay-notification-delivery", "Send a notification again", a.replayNotificationDelivery, about(
		"notifications", "With the same webhook-id, and again for up to a day."))
}

func notificationEndpointAnswer(e tenants.NotificationEndpoint) NotificationEndpoint {
	return NotificationEndpoint{
		ID: e.ID.String(), URL: e.URL, Description: e.Description, Types: append([]string{}, e.Types...), Enabled: e.Enabled,
		DisabledReason: optionalText(e.DisabledWhy), SecretLast4: e.SecretHint, PreviousSecretUntil: e.PreviousUntil,
		Dropped: e.Dropped, DroppedAt: e.DroppedAt, CreatedAt: e.CreatedAt, UpdatedAt: e.UpdatedAt, Version: e.Version,
	}
}

func notificationEndpointLocation(id uuid.UUID) string {
	return "/v1/notification-endpoints/" + id.String()
}

func (f *NotificationEndpointFields) apply(e *tenants.NotificationEndpoint) {
	e.Description = f.Description.patch(e.Description, "")
	e.Types = f.Types.patch(e.Types, nil)
	e.Enabled = f.Enabled.patch(e.Enabled, true)
}

// redactNotificationEndpoint removes the secret from the answer that is stored for replays.
func redactNotificationEndpoint(answer []byte) ([]byte, error) {
	var e NotificationEndpointCreated
	if err := json.Unmarshal(answer, &e); err != nil {
		return nil, err
	}
	e.Secret, e.SecretOmitted = "", true
	return json.Marshal(e)
}

func (a *admin) listNotificationEndpoints(ctx context.Context, in *struct{ PageParams }) (*page[NotificationEndpoint], error) {
	return listPage(ctx, a, "notification-endpoints", in.PageParams, notificationEndpointAnswer, func(p tenants.Page) ([]tenants.NotificationEndpoint, string, error) {
		return a.store.NotificationEndpoints(ctx, actorFrom(ctx), p)
	})
}

func (a *admin) createNotificationEndpoint(ctx context.Context, in *struct{ Body NotificationEndpointCreate }) (*object[NotificationEndpointCreated], error) {
	e := tenants.NotificationEndpoint{URL: in.Body.URL, Enabled: true}
	in.Body.apply(&e)
	made, secret, err := a.store.CreateNotificationEndpoint(ctx, actorFrom(ctx), e)
	if err != nil {
		return nil, err
	}
	body := NotificationEndpointCreated{NotificationEndpoint: notificationEndpointAnswer(made), Secret: secret}
	return stored(body, made.Version, true, notificationEndpointLocation(made.ID)), nil
}

func (a *admin) getNotificationEndpoint(ctx context.Context, in *NotificationEndpointPath) (*object[NotificationEndpoint], error) {
	id, err := objectID(in.ID)
	if err != nil {
		return nil, err
	}
	e, err := a.store.NotificationEndpoint(ctx, actorFrom(ctx), id)
	if err != nil {
		return nil, err
	}
	return found(notificationEndpointAnswer(e), e.Version), nil
}

func (a *admin) patchNotificationEndpoint(ctx context.Context, in *struct {
	NotificationEndpointPath
	Body NotificationEndpointPatch
}) (*object[NotificationEndpoint], error) {
	id, err := objectID(in.ID)
	if err != nil {
		return nil, err
	}
	e, err := a.store.EditNotificationEndpoint(ctx, actorFrom(ctx), id, conditionsFrom(ctx).match, func(e *tenants.NotificationEndpoint) error {
		var errs []ProblemField
		in.Body.URL.refuseNull(&errs, "/url")
		e.URL = in.Body.URL.patch(e.URL, "")
		in.Body.apply(e)
		return invalidIfAny(errs)
	})
	if err != nil {
		return nil, err
	}
	return found(notificationEndpointAnswer(e), e.Version), nil
}

func (a *admin) deleteNotificationEndpoint(ctx context.Context, in *NotificationEndpointPath) error {
	id, err := objectID(in.ID)
	if err != nil {
		return err
	}
	return a.store.DeleteNotificationEndpoint(ctx, actorFrom(ctx), id, conditionsFrom(ctx).match)
}

func (a *admin) rotateNotificationSecret(ctx context.Context, in *struct {
	NotificationEndpointPath
	Body *NotificationEndpointRotate
}) (*object[NotificationEndpointCreated], error) {
	id, err := objectID(in.ID)
	if err != nil {
		return nil, err
	}
	overlap := defaultOverlap
	if in.Body != nil {
		if overlap, err = parseOverlap(in.Body.Overlap); err != nil {
			return nil, err
		}
	}
	e, secret, err := a.store.RotateNotificationSecret(ctx, actorFrom(ctx), id, overlap)
	if err != nil {
		return nil, err
	}
	body := NotificationEndpointCreated{NotificationEndpoint: notificationEndpointAnswer(e), Secret: secret}
	return stored(body, e.Version, true, notificationEndpointLocation(e.ID)), nil
}

func (a *admin) testNotificationEndpoint(ctx context.Context, in *NotificationEndpointPath) (*answerOf[NotificationDelivery], error) {
	id, err := objectID(in.ID)
	if err != nil {
		return nil, err
	}
	d, err := a.store.TestNotificationEndpoint(ctx, actorFrom(ctx), id)
	if err != nil {
		return nil, err
	}
	return &answerOf[NotificationDelivery]{Body: notificationDeliveryAnswer(d)}, nil
}

func notificationDeliveryAnswer(d tenants.NotificationDelivery) NotificationDelivery {
	return NotificationDelivery{
		ID: d.ID.String(), Endpoint: d.Endpoint.String(), WebhookID: d.WebhookID, Type: d.Type, State: d.State, Attempts: int64(d.Attempts),
		Status: optionalInt(int64(d.Status)), Why: d.Why, Answer: d.Answer, NextAt: d.DueAt, AttemptedAt: d.AttemptedAt,
		SettledAt: d.SettledAt, CreatedAt: d.CreatedAt,
	}
}

func (a *admin) listNotificationDeliveries(ctx context.Context, in *NotificationDeliveriesQuery) (*page[NotificationDelivery], error) {
	filter := tenants.DeliveryFilter{State: in.State, Type: in.Type}
	if in.Endpoint != "" {
		id, err := uuid.Parse(in.Endpoint)
		if err != nil {
			return nil, invalid(wrongField("query:endpoint", limit.Wrong("Use an id that GET /v1/notification-endpoints lists.", "must be the id of a notification endpoint")))
		}
		filter.Endpoint = &id
	}
	name := "notification-deliveries\x00" + in.Endpoint + "\x00" + in.State + "\x00" + in.Type // no query value contains NUL
	return listPage(ctx, a, name, in.PageParams, notificationDeliveryAnswer, func(p tenants.Page) ([]tenants.NotificationDelivery, string, error) {
		return a.store.NotificationDeliveries(ctx, actorFrom(ctx), filter, p)
	})
}

func (a *admin) getNotificationDelivery(ctx context.Context, in *NotificationDeliveryPath) (*answerOf[NotificationDeliveryDetail], error) {
	id, err := objectID(in.ID)
	if err != nil {
		return nil, err
	}
	d, err := a.store.NotificationDelivery(ctx, actorFrom(ctx), id)
	if err != nil {
		return nil, err
	}
	return &answerOf[NotificationDeliveryDetail]{Body: NotificationDeliveryDetail{NotificationDelivery: notificationDeliveryAnswer(d), Body: d.Body}}, nil
}

func (a *admin) replayNotificationDelivery(ctx context.Context, in *NotificationDeliveryPath) (*answerOf[NotificationDelivery], error) {
	id, err := objectID(in.ID)
	if err != nil {
		return nil, err
	}
	d, err := a.store.ReplayNotification(ctx, actorFrom(ctx), id)
	if err != nil {
		return nil, err
	}
	return &answerOf[NotificationDelivery]{Body: notificationDeliveryAnswer(d)}, nil
}
