package api

import (
	"weir/internal/check"
)

// decodeBatch decodes the body of a batch. If one check is invalid, the whole batch is refused.
func (d *decoder) decodeBatch(body []byte) ([]check.Request, *Problem) {
	d.start(body)
	if p := d.open(); p != nil {
		return nil, p
	}
	reqs := d.reqs[:0]
	seen := false
	d.pos++ // {
	for first := true; ; first = false {
		name, done, p := d.member(first)
		if p != nil {
			return nil, p
		}
		if done {
			break
		}
		if string(name) != "checks" {
			return nil, d.unknownField(name, []string{"checks"})
		}
		if seen {
			return nil, d.duplicateField(name)
		}
		seen = true
		if d.peek() != '[' {
			p = d.wrong("checks", badBatch, 1)
		} else {
			reqs, p = d.checks(reqs)
			d.reqs = reqs[:len(reqs):cap(reqs)]
		}
		if p != nil {
			return nil, p
		}
	}
	if !seen {
		d.invalidField("checks", noChecks)
	}
	if p := d.end(); p != nil {
		return nil, p
	}
	return reqs, d.invalid()
}

// checks decodes the list of a batch: the first 100 entries; the others only have to be valid JSON.
func (d *decoder) checks(reqs []check.Request) (_ []check.Request, p *Problem) {
	n := 0
	d.pos++ // [
	for ; ; n++ {
		done, p := d.element(n == 0)
		if p != nil {
			return nil, p
		}
		if done {
			break
		}
		switch {
		case n >= maxBatch:
			p = d.skip(2)
		case d.peek() != '{':
			d.entry = n
			p = d.wrong("", notCheck, 2)
		default:
			d.entry = n
			reqs = append(reqs, check.Request{})
			p = d.check(&reqs[len(reqs)-1], 3)
		}
		if p != nil {
			return nil, p
		}
	}
	d.entry = -1
	if n == 0 || n > maxBatch {
		d.invalidField("checks", badBatch)
	}
	return reqs, nil
}
