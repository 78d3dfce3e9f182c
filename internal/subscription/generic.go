package subscription

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"weir/internal/limit"
)

// SubjectPlan is the type of the generic event that changes a plan.
const SubjectPlan = "subject.plan"

// SubjectCredits is the type of the generic event that grants credits.
const SubjectCredits = "subject.credits"

// MaxAhead is how long after it was sent an event may take effect. One that was not applied is
// deleted after that.
const MaxAhead = 400 * 24 * time.Hour

// maxReference is the maximum length of a reference of credits, in bytes.
const maxReference = 256

// minAnchor is the first second of the year 1, the first one of a cycle_anchor.
const minAnchor = -62_135_596_800

// The length of a signing secret of Standard Webhooks, in bytes.
const (
	MinGenericSecret = 24
	MaxGenericSecret = 64
)

// CheckGenericSecret returns an error if Standard Webhooks cannot use the signing secret, or
// if it is shorter or longer than it says.
func CheckGenericSecret(secret string) error {
	if _, err := standardwebhooks.NewWebhook(secret); err != nil {
		return err
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err == nil && (len(key) < MinGenericSecret || len(key) > MaxGenericSecret) {
		err = fmt.Errorf("the secret has %d bytes", len(key))
	}
	return err
}

// ReadGeneric verifies a webhook with a signature of Standard Webhooks, by any of the secrets, and
// parses it. Errors: ErrBadSignature, ErrOldSignature, ErrMalformed, *InvalidFields.
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
			sent := time.Unix(seconds, 0).UTC()
			return parseGeneric(body, header.Get(standardwebhooks.HeaderWebhookID), sent, min(maxTime, sent.Add(MaxAhead).Unix()))
		case errors.Is(err, standardwebhooks.ErrMessageTooOld), errors.Is(err, standardwebhooks.ErrMessageTooNew):
			found = ErrOldSignature
		}
	}
	return Event{}, found
}

// ParseGeneric parses an event that was verified and stored before. sent is its time when it was
// first received, at arrived. The time of the event is effective_at, or sent without one, because
// the timestamp of a webhook changes with each attempt. Of two events with the same time, the one
// that arrived later is newer. Invalid fields, which an earlier release stored, make it unreadable,
// but a time far ahead does not.
func ParseGeneric(body []byte, id string, sent, arrived time.Time) (Event, error) {
	e, err := parseGeneric(body, id, sent, maxTime)
	if e.Snapshot != nil {
		e.Snapshot.Arrived = arrived.UnixMicro()
	}
	if wrong := (*InvalidFields)(nil); errors.As(err, &wrong) {
		e.unreadable("%s", wrong.Error())
		return e, nil
	}
	return e, err
}

// parseGeneric parses an event, which takes effect up to the second latest. Errors: ErrMalformed,
// *InvalidFields with an event that has only its id, type and time.
func parseGeneric(body []byte, id string, sent time.Time, latest int64) (Event, error) {
	in, err := readObject(body)
	if err != nil || hasNUL(body) {
		return Event{}, fmt.Errorf("%w: must be one JSON object with a type", ErrMalformed)
	}
	if id == "" || len(id) > maxID || !utf8.ValidString(id) {
		return Event{}, fmt.Errorf("%w: webhook-id is required, up to %d bytes of UTF-8", ErrMalformed, maxID)
	}
	kind := in.text("type", maxID)
	if kind == "" {
		return Event{}, fmt.Errorf("%w: type is required, up to %d bytes", ErrMalformed, maxID)
	}
	e := Event{ID: id, Type: kind, At: sent}
	switch kind {
	case SubjectPlan:
		e.plan(in, latest)
	case SubjectCredits:
		e.grant(in)
	default:
		e.Why = "events of type " + kind + " are ignored; use " + SubjectPlan + " or " + SubjectCredits
		return e, nil
	}
	if in.refuseOthers(); len(in.wrong) > 0 {
		return Event{ID: id, Type: kind, At: sent}, &InvalidFields{in.wrong}
	}
	return e, nil
}

// plan reads an event that changes a plan, up to the second latest.
func (e *Event) plan(in *object, latest int64) {
	e.Kind, e.Subject = Changed, in.subject()
	e.Subscription = e.Subject
	if in.required("plan") {
		e.Snapshot = &Snapshot{Event: e.ID, Status: Active, Plan: in.text("plan", limit.MaxSlugBytes)}
	} else {
		e.Snapshot = &Snapshot{}
	}
	if at := in.time("effective_at", 0, latest); at != nil {
		e.At, e.Effective = *at, *at
	}
	e.Snapshot.At, e.Snapshot.Rank = e.At.Unix(), 1+e.At.Nanosecond()/1000
	if anchor := in.time("cycle_anchor", minAnchor, maxTime); anchor != nil {
		e.Snapshot.Anchor = anchor.Unix()
	}
	if n := in.integer("quantity", 1, MaxMultiplier); n != nil {
		e.Snapshot.Items = []Item{{Quantity: *n}}
	}
}

// grant reads an event that grants credits.
func (e *Event) grant(in *object) {
	e.Kind, e.Subject, e.Grant = Granted, in.subject(), &Grant{}
	if in.required("rule") {
		e.Grant.Rule = in.text("rule", limit.MaxSlugBytes)
	}
	if in.required("units") {
		if n := in.integer("units", 1, limit.MaxFixedLimit); n != nil {
			e.Grant.Units = *n
		}
	}
	e.Grant.ExpiresAt = in.time("expires_at", 0, maxTime)
	e.Grant.Reference = in.text("reference", maxReference)
}
