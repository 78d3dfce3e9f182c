package subscription

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stripe/stripe-go/v85"
)

// MeterEvent is a customer's units, for a meter of the provider.
type MeterEvent struct {
	Name       string // of the meter's events
	Customer   string
	Value      int64
	At         time.Time
	Identifier string // the provider counts events with the same identifier once, for at least 24 hours
}

// MeterError says why an event was not sent.
type MeterError struct {
	// Refused: the provider will refuse this customer's event again, but perhaps not others.
	Refused bool
	// Rejected: the provider rejects each event of this meter that is sent with the same key,
	// which may lack a permission or belong to an account without the meter. It has not taken
	// this one.
	Rejected bool
	// Unsure: the provider may have received the event.
	Unsure bool
	Why    string
}

func (e *MeterError) Error() string { return e.Why }

// rejects are the statuses of a key or an account that takes no event of a meter.
var rejects = map[int]bool{http.StatusBadRequest: true, http.StatusUnauthorized: true, http.StatusForbidden: true, http.StatusNotFound: true}

// SendMeterEvent sends one event. The key needs write access to meter events. An event that the
// provider has already is sent. Error: *MeterError.
func (c *Client) SendMeterEvent(ctx context.Context, e MeterEvent) *MeterError {
	params := &stripe.BillingMeterEventCreateParams{
		EventName: stripe.String(e.Name), Identifier: stripe.String(e.Identifier), Timestamp: stripe.Int64(e.At.Unix()),
		Payload: map[string]string{"stripe_customer_id": e.Customer, "value": strconv.FormatInt(e.Value, 10)},
	}
	// The last error says nothing about earlier sendings, so the event is not repeated here. The
	// transport still repeats it if a connection that was used before breaks.
	var sendings atomic.Int32
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sendings.Add(1) }})
	_, err := c.meters.V1BillingMeterEvents.Create(ctx, params)
	if err == nil {
		return nil
	}
	var failed *stripe.Error
	if !errors.As(err, &failed) {
		var dial *net.OpError
		unsent := errors.As(err, &dial) && dial.Op == "dial" && sendings.Load() == 0
		return &MeterError{Unsure: !unsent, Why: "the provider cannot be reached"}
	}
	// The code is missing in some versions of the API.
	if failed.Code == "duplicate_meter_event" || strings.Contains(failed.Msg, "event already exists with identifier") {
		return nil
	}
	refused := failed.Code == stripe.ErrorCodeResourceMissing
	// An answer is about the last sending only.
	unsure := failed.HTTPStatusCode >= http.StatusInternalServerError || sendings.Load() > 1
	return &MeterError{
		Refused: refused, Rejected: !refused && !unsure && rejects[failed.HTTPStatusCode], Unsure: unsure,
		// The message can hold parts of the key, and goes no further than its code.
		Why: fmt.Sprintf("the provider answered %d %s", failed.HTTPStatusCode, cmp.Or(string(failed.Code), string(failed.Type))),
	}
}
