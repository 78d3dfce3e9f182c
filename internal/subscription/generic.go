package subscription

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

const maxSubject = 256 // bytes

// SubjectPlan is the type of the generic event that changes a plan.
const SubjectPlan = "subject.plan"

// genericEvent is the body of the generic webhook.
type genericEvent struct {
	Type        string     `json:"type"`
	Subject     string     `json:"subject"`
	Plan        string     `json:"plan"`
	EffectiveAt *time.Time `json:"effective_at"`
	CycleAnchor *time.Time `json:"cycle_anchor"`
	Quantity    *int64     `json:"quantity"`
}

// CheckGenericSecret returns an error if Standard Webhooks cannot use the signing secret.
func CheckGenericSecret(secret string) error {
	_, err := standardwebhooks.NewWebhook(secret)
	return err
}

// ReadGeneric verifies a webhook with a signature of Standard Webhooks, by any of the secrets, and
// parses it. Errors: ErrBadSignature, ErrOldSignature, ErrMalformed.
func ReadGeneric(body []byte, header http.Header, secrets []string) (Event, error) {
	found := ErrBadSignature
	for _, secret := range secrets {
		hook, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			continue // it was validated when it was set
		}
		switch err := hook.Verify(body, header); {
		case err == nil:
			seconds, _ := strconv.ParseInt(header.Get(standardwebhooks.HeaderWebhookTimestamp), 10, 64) // Verify has parsed it
			return ParseGeneric(body, header.Get(standardwebhooks.HeaderWebhookID), time.Unix(seconds, 0).UTC())
		case errors.Is(err, standardwebhooks.ErrMessageTooOld), errors.Is(err, standardwebhooks.ErrMessageTooNew):
			found = ErrOldSignature
		}
	}
	return Event{}, found
}

// ParseGeneric parses an event that was verified before. sent is when it was first received. The
// time of the event is effective_at, or sent without one, because the timestamp of a webhook
// changes with each attempt.
func ParseGeneric(body []byte, id string, sent time.Time) (Event, error) {
	var in genericEvent
	d := json.NewDecoder(bytes.NewReader(body))
	if err := d.Decode(&in); err != nil || d.More() || hasNUL(body) {
		return Event{}, fmt.Errorf("%w: must be one JSON object with a type", ErrMalformed)
	}
	if in.Type == "" || len(in.Type) > maxID || id == "" || len(id) > maxID {
		return Event{}, fmt.Errorf("%w: webhook-id and type are required, up to %d bytes", ErrMalformed, maxID)
	}
	e := Event{ID: id, Type: in.Type, At: sent}
	if in.Type != SubjectPlan {
		e.Why = "events of type " + in.Type + " are ignored; use " + SubjectPlan
		return e, nil
	}
	if in.Subject == "" || in.Plan == "" || len(in.Subject) > maxSubject {
		e.unreadable("subject and plan are required, and a subject has at most %d bytes", maxSubject)
		return e, nil
	}
	if in.EffectiveAt != nil {
		e.At, e.Effective = in.EffectiveAt.UTC(), in.EffectiveAt.UTC()
	}
	if e.At.Unix() < 0 || e.At.Unix() > maxTime {
		e.At = sent
		e.unreadable("effective_at is out of range")
		return e, nil
	}
	e.Kind, e.Subject, e.Subscription = Changed, in.Subject, in.Subject
	e.Snapshot = &Snapshot{At: e.At.Unix(), Rank: 1, Event: id, Status: Active, Plan: in.Plan}
	if in.CycleAnchor != nil {
		e.Snapshot.Anchor = in.CycleAnchor.Unix()
	}
	if in.Quantity != nil {
		e.Snapshot.Items = []Item{{Quantity: *in.Quantity}}
	}
	return e, nil
}
