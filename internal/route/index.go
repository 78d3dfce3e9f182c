package route

import (
	"math/bits"
	"slices"
)

// A path is compared with the templates one after the other, which is fast for the few short ones
// of most routes. With 100 templates of 126 segments, it would take 40 µs. A gateway can state a
// path in up to four ways, each of which is read in up to four ways, and a call of Envoy has up to
// 16 descriptors, so one call would take 10 ms. Routes with more than maxCompared bytes of patterns
// have an index. With it, the time hardly depends on the number of templates.
const maxCompared = 512

// pathIndex has for each segment of a path the templates that match it. Those that match all
// segments, and their number, match the path.
type pathIndex struct {
	// lengths are the templates by the number of segments that they match. The last one is for
	// paths with more segments than any template.
	lengths  []templateSet
	segments []segmentIndex
}

// segmentIndex are the templates that match a segment.
type segmentIndex struct {
	any      templateSet    // match each text there, or do not look at it
	literals []literalIndex // in order
}

type literalIndex struct {
	text      string // in lower case
	templates templateSet
}

// templateSet is a set of positions among the templates of a route.
type templateSet [2]uint64

const _ = uint(64*len(templateSet{}) - MaxTemplates) // each template fits

func (s *templateSet) add(i int) { s[i/64] |= 1 << (i % 64) }

func (s templateSet) and(o templateSet) templateSet { return templateSet{s[0] & o[0], s[1] & o[1]} }

func (s templateSet) or(o templateSet) templateSet { return templateSet{s[0] | o[0], s[1] | o[1]} }

// indexPaths moves the segments of the templates to an index, if they are too many to be compared
// one after the other.
func (c *Compiled) indexPaths() {
	bytes, most := 0, 0
	for i := range c.templates {
		if p := &c.templates[i].pattern; p.descriptor == nil {
			bytes += len(c.Resources[i].Match)
			most = max(most, len(p.segments))
		}
	}
	if bytes <= maxCompared {
		return
	}
	x := &pathIndex{lengths: make([]templateSet, most+2), segments: make([]segmentIndex, most)}
	for i := range c.templates {
		p := &c.templates[i].pattern
		if p.descriptor != nil {
			continue
		}
		x.lengths[len(p.segments)].add(i)
		for n := len(p.segments) + 1; p.rest && n < len(x.lengths); n++ {
			x.lengths[n].add(i)
		}
		for at := range x.segments {
			if at < len(p.segments) && p.segments[at].literal != "" {
				x.segments[at].add(p.segments[at].literal, i)
			} else {
				x.segments[at].any.add(i)
			}
		}
		p.segments = nil
	}
	for at := range x.segments {
		x.segments[at].literals = slices.Clip(x.segments[at].literals)
	}
	c.index = x
}

// add adds the template i, which has a literal there.
func (s *segmentIndex) add(literal string, i int) {
	at, found := s.find([]byte(literal))
	if !found {
		s.literals = slices.Insert(s.literals, at, literalIndex{text: literal})
	}
	s.literals[at].templates.add(i)
}

// find returns where a text is among the literals, or would be.
func (s *segmentIndex) find(text []byte) (at int, found bool) {
	low, high := 0, len(s.literals)
	for low < high {
		middle := int(uint(low+high) / 2)
		switch literal := s.literals[middle].text; {
		case literal == string(text):
			return middle, true
		case literal < string(text):
			low = middle + 1
		default:
			high = middle
		}
	}
	return low, false
}

// firstIndexed is first for a route with an index.
func (c *Compiled) firstIndexed(in *Input, method []byte) int {
	x, path := c.index, in.segments
	found := x.lengths[min(len(path), len(x.lengths)-1)]
	for at := range min(len(path), len(x.segments)) {
		if found == (templateSet{}) {
			return noTemplate
		}
		s := &x.segments[at]
		matching := s.any
		if found.and(matching) == found { // the text does not matter
			continue
		}
		if len(path[at]) <= MaxMatchBytes {
			text, end := in.lower(path[at])
			if i, is := s.find(text); is {
				matching = matching.or(s.literals[i].templates)
			}
			in.text = in.text[:end]
		}
		found = found.and(matching)
	}
	for word, set := range found {
		for ; set != 0; set &= set - 1 {
			if i := 64*word + bits.TrailingZeros64(set); c.templates[i].takes(method) {
				return i
			}
		}
	}
	return noTemplate
}

// lower returns a text in lower case. If it is not, it is converted in in.text, which the caller
// must cut at end then.
func (in *Input) lower(text []byte) (lower []byte, end int) {
	end = len(in.text)
	for i, b := range text {
		if b < 'A' || b > 'Z' {
			continue
		}
		in.text = append(in.text, text...)
		lower = in.text[end:]
		for ; i < len(lower); i++ {
			if b := lower[i]; b >= 'A' && b <= 'Z' {
				lower[i] = b + 'a' - 'A'
			}
		}
		return lower, end
	}
	return text, end
}

// bytes returns the approximate memory of the index.
func (x *pathIndex) bytes() int {
	n := 16*len(x.lengths) + 40*len(x.segments) + 64
	for i := range x.segments {
		n += 32*cap(x.segments[i].literals) + 16
	}
	return n
}
