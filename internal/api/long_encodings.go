package api

import (
	"context"

	"weir/internal/limit"
	"weir/internal/places"
	"weir/internal/tenants"
)

// To encode a long answer uses the processor as long as to decode a large body: 100 000 limits of
// plans take 80 ms in a list, 160 ms in a document, and more than a second in YAML. Such answers
// take turns with large bodies, after they are read from Postgres and until they begin.
//
// Exports have no turns. They encode one page at a time, after reading it, wait for their clients
// in between, and have few places of their own.

const (
	// fewEncoded is how many values need no turn, so those that do take at least 2 ms.
	fewEncoded = 2000
	// yamlValue is the number of values in JSON that take as long as one in YAML.
	yamlValue = 10
)

// weighted is an item of lists that may have very many values.
type weighted interface {
	weight() int // about the number of values, of a microsecond each
}

func (p Plan) weight() int { return len(p.Limits) }

func (r Route) weight() int { return len(r.Resources) }

func (s Subject) weight() int { return len(s.Overrides) + len(s.Labels) }

func (e AuditEntry) weight() int { return (len(e.Before) + len(e.After)) / 100 }

// encodeList waits for a turn if a page has very many values. It ends when the answer begins.
func encodeList[T any](ctx context.Context, items []T) error {
	values := 0
	for i := range items {
		item, ok := any(&items[i]).(weighted)
		if !ok {
			return nil
		}
		values += item.weight()
	}
	q := requestFrom(ctx)
	if values <= fewEncoded || q == nil {
		return nil
	}
	wait, cancel := context.WithTimeout(ctx, q.capacity.bodies.reading)
	defer cancel()
	leave, p := q.capacity.turn(wait, q.capacity.bodies.large, q.actor.TenantID())
	if p != nil {
		return p
	}
	q.turn = leave
	return nil
}

// encodeDocument encodes a document, in turns if it has very many values: first among those in
// YAML, as convertYAML does.
func encodeDocument(ctx context.Context, d *tenants.Document, inYAML bool) (body []byte, err error) {
	q, values := requestFrom(ctx), documentValues(d)
	kinds := []*places.Turns[limit.TenantID]{q.capacity.bodies.large}
	if inYAML {
		kinds = []*places.Turns[limit.TenantID]{q.capacity.bodies.yaml, q.capacity.bodies.large}
		values *= yamlValue
	}
	if values > fewEncoded {
		wait, cancel := context.WithTimeout(ctx, q.capacity.bodies.reading)
		defer cancel()
		for _, turns := range kinds {
			leave, p := q.capacity.turn(wait, turns, q.actor.TenantID())
			if p != nil {
				return nil, p
			}
			defer leave()
		}
	}
	if body, err = encodeConfig(d); err == nil && inYAML {
		body = yamlOf(body)
	}
	return body, err
}

// documentValues returns about how many values a document has.
func documentValues(d *tenants.Document) int {
	const ofRule = 10
	n := ofRule*len(d.Rules) + len(d.Endpoints) + len(d.Prices)
	for i := range d.Routes {
		n += ofRule + len(d.Routes[i].Resources)
	}
	for i := range d.Plans {
		n += len(d.Plans[i].Limits)
		for j := range d.Plans[i].Older {
			n += len(d.Plans[i].Older[j].Limits)
		}
	}
	for i := range d.Subjects {
		n += 1 + len(d.Subjects[i].Overrides) + len(d.Subjects[i].Labels)
	}
	return n
}
