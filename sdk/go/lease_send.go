package weir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// refusedLease is the error of a request for units that the server refuses to lease.
type refusedLease struct{ wait time.Duration }

func (e *refusedLease) Error() string { return "no units can be leased now" }

const codeNotLeasable = "NOT_LEASABLE"

// wireLease is a lease as the server encodes it.
type wireLease struct {
	Lease       string       `json:"lease"`
	Units       int64        `json:"units"`
	ExpiresInMS int64        `json:"expires_in_ms"`
	Decision    wireDecision `json:"decision"`
}

// sendLease requests units for a kind of check. It returns a lease, or the denial of a check of
// cost 1. The time of the lease begins at sentAt, which is before the request.
func (c *Client) sendLease(ctx context.Context, check *Check, units int64, sentAt time.Time) (*lease, *Decision, error) {
	a, err := c.exchange(ctx, c.leasesURL, c.header(0), appendLease(nil, check, units), maxAnswer)
	if err != nil {
		return nil, nil, failureOf(ctx, err)
	}
	defer a.release()
	if a.status == http.StatusConflict || a.status == http.StatusNotFound || a.status == http.StatusMethodNotAllowed {
		return nil, nil, a.refusedLease() // a server without leases answers 404 or 405
	}
	if err := a.undecided(); err != nil {
		return nil, nil, err
	}
	word := a.header.Get("Weir-Decision")
	switch {
	case a.status == http.StatusTooManyRequests && strings.EqualFold(word, "deny"):
		d, err := decodeDecision(a.body.Bytes())
		if err != nil || d.Allowed {
			return nil, nil, a.nonsense(errors.Join(err, errNoDecision))
		}
		d.Headers = headersOf(a.header)
		return nil, &d, nil
	case a.status == http.StatusOK && strings.EqualFold(word, "allow"):
		granted, err := a.lease(check, units, sentAt)
		if err != nil {
			return nil, nil, a.nonsense(err)
		}
		return granted, nil, nil
	}
	return nil, nil, a.nonsense(fmt.Errorf("Weir-Decision is %q and the status %d", word, a.status))
}

func (a *answer) refusedLease() *refusedLease {
	refused := &refusedLease{wait: leaseImpossible}
	if seconds, err := strconv.ParseInt(a.header.Get("Retry-After"), 10, 32); err == nil && seconds > 0 && a.problem().Code == codeNotLeasable {
		refused.wait = min(time.Duration(seconds)*time.Second, leaseImpossible)
	}
	return refused
}

// lease reads a granted lease.
func (a *answer) lease(check *Check, most int64, sentAt time.Time) (*lease, error) {
	var w wireLease
	if err := json.Unmarshal(a.body.Bytes(), &w); err != nil {
		return nil, err
	}
	d, err := w.Decision.decision()
	if err != nil {
		return nil, err
	}
	if w.Lease == "" || w.Units < 1 || w.Units > most || w.ExpiresInMS < 1 || w.ExpiresInMS > 60_000 || !d.Allowed {
		return nil, fmt.Errorf("a lease of %d units for %d ms, with %d requested", w.Units, w.ExpiresInMS, most)
	}
	d.Source, d.Subject, d.Resource, d.Headers = SourceLease, check.Subject, check.Resource, headersOf(a.header)
	granted := &lease{
		id: w.Lease, units: w.Units, low: max(1, w.Units/leaseLow), decision: d, quota: maxCost,
		sentAt: sentAt, life: time.Duration(w.ExpiresInMS) * time.Millisecond, wallMS: sentAt.UnixMilli() + w.ExpiresInMS,
	}
	granted.early = granted.life - granted.life/leaseLow
	for i := range d.Rules {
		if r := &d.Rules[i]; r.Rule == d.Rule {
			granted.quota = max(r.Limit.Or(0), r.Burst.Or(0))
			if r.Burst.Known {
				granted.quota = r.Burst.Value
			}
		}
	}
	granted.left.Store(w.Units)
	return granted, nil
}

// sendReturn returns units.
func (c *Client) sendReturn(ctx context.Context, r *leaseReturn) error {
	b := strconv.AppendInt([]byte(`{"units":`), r.units, 10)
	b = strconv.AppendInt(append(b, `,"allowed":`...), r.allowed, 10)
	b = strconv.AppendInt(append(b, `,"denied":`...), r.denied, 10)
	b = strconv.AppendInt(append(b, `,"denied_units":`...), r.deniedUnits, 10)
	a, err := c.exchange(ctx, c.leasesURL.JoinPath(url.PathEscape(r.id), "return"), c.header(0), append(b, '}'), maxAnswer)
	if err != nil {
		return failureOf(ctx, err)
	}
	defer a.release()
	if a.status == http.StatusNoContent {
		return nil
	}
	return a.undecided()
}

// appendLease appends the body of a request for units.
func appendLease(b []byte, check *Check, units int64) []byte {
	q := question{Check: *check}
	q.Cost = 1
	b = q.appendJSON(b) // a cost of 1 is the default, which is omitted
	return append(strconv.AppendInt(append(b[:len(b)-1], `,"units":`...), units, 10), '}')
}
