package check

import (
	"reflect"

	"weir/internal/limit"
)

// sizeOf returns the size of a T in bytes, without what it points to.
func sizeOf[T any]() int { return int(reflect.TypeFor[T]().Size()) } // small

// measure returns the approximate size of a policy without its subjects, including the overhead of
// the allocator and the free space of maps.
func (p *Policy) measure() int64 {
	const (
		object = 16 // lost by rounding, per object
		table  = 48 // an empty map
	)
	n := sizeOf[Policy]() + sizeOf[tenantEntry]() + 64 + len(p.slug) + object // 64: the entry in the map of tenants
	n += len(p.rules) * sizeOf[compiledRule]()
	for i := range p.rules {
		r := &p.rules[i]
		n += len(r.id) + object/2
		if i == 0 || r.by != p.rules[i-1].by { // most rules of a tenant count by the same values
			n += r.by.bytes() + object
		}
		n += textBytes(&r.rule, object/2)
		if r.cycle != nil {
			n += sizeOf[limit.Cycle]() + sizeOf[limit.Bounds]() + 2*object
		}
	}
	for _, index := range []map[string][]int32{p.exact, p.prefixes} {
		n += table
		for _, rules := range index {
			n += 2*(sizeOf[string]()+sizeOf[[]int32]()) + 4*cap(rules) // half of a map is free
		}
	}
	n += table + 8*cap(p.lengths)
	n += sizeOf[places]() + len(p.places.prefixes)*(sizeOf[string]()+object/2)
	for slug, plan := range p.plans {
		n += 2*(sizeOf[string]()+8) + len(slug) + plan.bytes(object)
	}
	for slug, r := range p.routes {
		n += 2*(sizeOf[string]()+8) + len(slug) + r.Bytes() + 2*object
	}
	return int64(n)
}

// textBytes returns the size of the texts of a rule, plus each for every text.
func textBytes(r *limit.Rule, each int) (n int) {
	for i := range limit.Fields {
		f := &limit.Fields[i]
		if f.Kind() == limit.ChoiceKind {
			continue // all rules share the names
		}
		switch v := f.Get(r).(type) {
		case string:
			if v != "" {
				n += len(v) + each
			}
		case []string:
			for _, text := range v {
				n += sizeOf[string]() + len(text) + each
			}
		}
	}
	return n
}
