package subscription

import (
	"cmp"
	"strings"
)

// Facts are what is known of a customer. Like a State, they depend on the set of events and not on
// their order.
type Facts struct {
	Metadata   map[string]string `json:"metadata,omitempty"`
	MetadataAt int64             `json:"metadata_at,omitempty"`
	// Second has the descriptions of MetadataAt, in the order of their ids: a later event of this
	// second can decide which one is the newest. Facts of earlier releases have none.
	Second []Description `json:"second,omitempty"`

	// From the newest checkout.
	Reference   string            `json:"reference,omitempty"`
	Linked      map[string]string `json:"linked,omitempty"` // its metadata
	LinkedAt    int64             `json:"linked_at,omitempty"`
	LinkedEvent string            `json:"linked_event,omitempty"` // its id, which orders those of one second

	Gone int64 `json:"gone,omitempty"` // when the customer was deleted; 0 for never

	// Passed is how far an unfinished event of the customer was processed; nil: there is none. The
	// caller sets it.
	Passed *Passed `json:"passed,omitempty"`
}

// Passed is how far an event of a customer was processed with its facts: first their subscriptions,
// then the events that wait for the customer, both in order.
type Passed struct {
	Subscription string `json:"subscription,omitempty"` // the last one; "": there was none
	Events       bool   `json:"events,omitempty"`       // all subscriptions were processed
	Event        string `json:"event,omitempty"`        // the id of the last one; "": there was none
	// Failed is the first subject whose plan could not be changed, and Why the reason; "": none.
	Failed string `json:"failed,omitempty"`
	Why    string `json:"why,omitempty"`
}

// Merge adds an event and reports whether the facts are those of the event, or have changed.
func (f *Facts) Merge(e *Event) (newest bool) {
	at := e.At.Unix()
	switch {
	case e.Kind == Customer && e.Gone:
		f.Gone = max(f.Gone, at)
		return f.Gone == at
	case e.Kind == Customer:
		return f.Describe(at, Description{Event: e.ID, Rank: e.Rank, Was: e.Was, Metadata: e.Metadata})
	case e.Kind == Linked && cmp.Or(cmp.Compare(at, f.LinkedAt), strings.Compare(e.ID, f.LinkedEvent)) >= 0:
		f.Reference, f.Linked, f.LinkedAt, f.LinkedEvent = e.Reference, e.Metadata, at, e.ID
		return true
	}
	return false
}

// Subject returns the subject of a customer's subscription: from the field that the endpoint
// configures, or the subject that is registered with the customer's id as its reference. It returns
// "" if the subject is unknown.
func (f *Facts) Subject(from string, newest *Snapshot, customer, registered string) string {
	switch key, isMetadata := strings.CutPrefix(from, "metadata."); {
	case isMetadata:
		own := ""
		if newest != nil {
			own = newest.Metadata[key]
		}
		return cmp.Or(own, f.Metadata[key], f.Linked[key], registered)
	case from == "client_reference_id":
		return cmp.Or(f.Reference, registered)
	}
	return cmp.Or(registered, customer)
}
