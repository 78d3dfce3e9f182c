package api

import (
	"context"
	"strconv"
	"time"

	"github.com/google/uuid"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// BillingEvent is an event with its outcome, as the API shows it.
type BillingEvent struct {
	ID           string     `json:"id" format:"uuid"`
	Endpoint     string     `json:"endpoint" format:"uuid"`
	EventID      string     `json:"event_id" doc:"Id of the event at the provider"`
	Type         string     `json:"type"`
	OccurredAt   time.Time  `json:"occurred_at" doc:"The provider's own time, by which events are ordered"`
	ReceivedAt   time.Time  `json:"received_at"`
	Outcome      *string    `json:"outcome" enum:"applied,duplicate,stale,parked,ignored,failed" doc:"null: not yet decided, for a moment"`
	Why          string     `json:"why" doc:"The reason for the outcome"`
	SettledAt    *time.Time `json:"settled_at"`
	Customer     *string    `json:"customer"`
	Subscription *string    `json:"subscription"`
	Subject      *string    `json:"subject" doc:"null: not known"`
	DuplicateOf  *string    `json:"duplicate_of" format:"uuid"`
	Deliveries   int64      `json:"deliveries" doc:"How often the event was received; of a duplicate, how often it was received again"`
}

// BillingEventsQuery selects events.
type BillingEventsQuery struct {
	PageParams
	Endpoint string `query:"endpoint" doc:"Id of a billing endpoint"`
	Outcome  string `query:"outcome" enum:"applied,duplicate,stale,parked,ignored,failed"`
	Subject  string `query:"subject"`
	Customer string `query:"customer" doc:"Id of a customer at the provider"`
	Type     string `query:"type"`
}

// BillingEventPath names an event.
type BillingEventPath struct {
	ID string `path:"id" doc:"Id of the event here, not at the provider"`
}

func billingEventAnswer(e tenants.BillingEvent) BillingEvent {
	out := BillingEvent{
		ID: e.ID.String(), Endpoint: e.Endpoint.String(), EventID: e.ProviderID, Type: e.Type, OccurredAt: e.ProviderAt, ReceivedAt: e.ReceivedAt,
		Outcome: optionalText(e.Outcome), Why: e.Why, SettledAt: e.SettledAt, Customer: optionalText(e.Customer),
		Subscription: optionalText(e.Subscription), Subject: optionalText(e.Subject), Deliveries: int64(e.Deliveries),
	}
	if e.DuplicateOf != nil {
		out.DuplicateOf = ptr(e.DuplicateOf.String())
	}
	return out
}

func (a *admin) listBillingEvents(ctx context.Context, in *BillingEventsQuery) (*page[BillingEvent], error) {
	filter := tenants.BillingEventFilter{Outcome: in.Outcome, Subject: in.Subject, Customer: in.Customer, Type: in.Type}
	if in.Endpoint != "" {
		id, err := uuid.Parse(in.Endpoint)
		if err != nil {
			return nil, invalid(wrongField("query:endpoint", limit.Wrong("Use an id that GET /v1/billing/endpoints lists.", "must be the id of a billing endpoint")))
		}
		filter.Endpoint = &id
	}
	list := "billing-events"
	for _, part := range []string{in.Endpoint, in.Outcome, in.Subject, in.Customer, in.Type} {
		list += "\x00" + strconv.Quote(part)
	}
	return listPage(ctx, a, list, in.PageParams, billingEventAnswer, func(p tenants.Page) ([]tenants.BillingEvent, string, error) {
		items, next, err := a.store.BillingEvents(ctx, actorFrom(ctx), filter, p)
		return items, next, queryErrors(err)
	})
}

func (a *admin) getBillingEvent(ctx context.Context, in *BillingEventPath) (*answerOf[BillingEvent], error) {
	id, err := objectID(in.ID)
	if err != nil {
		return nil, err
	}
	e, err := a.store.BillingEventByID(ctx, actorFrom(ctx), id)
	if err != nil {
		return nil, err
	}
	return &answerOf[BillingEvent]{Body: billingEventAnswer(e)}, nil
}

func (a *admin) replayBillingEvent(ctx context.Context, in *BillingEventPath) (*answerOf[BillingEvent], error) {
	id, err := objectID(in.ID)
	if err != nil {
		return nil, err
	}
	e, err := a.billing.Replay(ctx, actorFrom(ctx), id)
	if err != nil {
		return nil, err
	}
	return &answerOf[BillingEvent]{Body: billingEventAnswer(e)}, nil
}

func (a *admin) dismissBillingEvent(ctx context.Context, in *BillingEventPath) (*answerOf[BillingEvent], error) {
	id, err := objectID(in.ID)
	if err != nil {
		return nil, err
	}
	e, err := a.store.DismissBillingEvent(ctx, actorFrom(ctx), id)
	if err != nil {
		return nil, err
	}
	return &answerOf[BillingEvent]{Body: billingEventAnswer(e)}, nil
}
