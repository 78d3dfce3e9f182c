package api

import (
	"context"

	"weir/internal/limit"
	"weir/internal/places"
	"weir/internal/tenants"
)

// To encode a document uses the processor as long as to decode a large body: 100 000 limits of
// plans take 160 ms, and more than a second in YAML. Lists have a turn until their answers begin
// (inLongTurn). A document gives it back when it is read, and takes another one, so that nobody's
// lists wait until one in YAML has its turn.
//
// All kinds are taken in one order: a turn of what is created (answers.created), which is the only
// one that is kept meanwhile, one in YAML, one among long work. In another order, three documents
// of a tenant could wait for each other.
//
// Exports have no turns. They encode one page at a time, after reading it, wait for their clients
// in between, and have few places of their own.

const (
	// fewEncoded is how many values need no turn, so those that do take at least 2 ms.
	fewEncoded = 2000
	// yamlValue is the number of values in JSON that take as long as one in YAML.
	yamlValue = 10
)

// encodeDocument encodes a document, in turns if it has very many values: first among those in
// YAML, as convertYAML does.
func encodeDocument(ctx context.Context, d *tenants.Document, inYAML bool) (body []byte, err error) {
	q, values := requestFrom(ctx), documentValues(d)
	q.endList()
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

// encodeLong runs encode, which encodes about so many values, in turn of tenants if they are many.
func encodeLong(ctx context.Context, values int, encode func()) error {
	if values > fewEncoded {
		q := requestFrom(ctx)
		leave, p := q.turnWithin(ctx, q.capacity.bodies.large, q.capacity.bodies.reading)
		if p != nil {
			return p
		}
		defer leave()
	}
	encode()
	return nil
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

// turnUntilAnswer waits for a turn of the tenant among short work, which ends when the answer
// begins. The request must wait for nothing else until then.
func turnUntilAnswer(ctx context.Context) error {
	leave, err := shortTurn(ctx)
	if err == nil {
		requestFrom(ctx).untilAnswer(leave)
	}
	return err
}

// shortTurn waits for a turn of the tenant among short work. The caller must wait for nothing else
// until it ends.
func shortTurn(ctx context.Context) (end func(), err error) {
	q := requestFrom(ctx)
	end, p := q.turnWithin(ctx, q.capacity.bodies.small, q.capacity.bodies.wait)
	if p != nil {
		return nil, p
	}
	return end, nil
}
