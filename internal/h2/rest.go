package h2

import (
	"bytes"

	"golang.org/x/net/http2"

	"weir/internal/origin"
)

// The rest of an answer is what its client does not accept yet when nobody works on the answer any
// more: of a direct call, or the end of an answer of the handler. Nothing waits for it, so rests
// need bounds of their own: for a connection, for all clients together (Limits.Rest), and in time
// (endUnread).

const (
	// maxRest is how many bytes of rests a connection keeps, more than the longest direct answers,
	// explained ones of 25 kB, have on all its streams: their checks are counted already. One rest
	// alone is never too long.
	maxRest = 4 << 20
	// restPart is what counts as one part: a short answer, and what is kept besides.
	restPart = maxHeld + 1<<10
)

// sendOrStick appends the rest of an answer, and reports whether that was all of it. What the
// windows do not permit follows later (resume), and so does an answer for which the output is too
// large. Until then, only that is kept: a client that does not read must not keep its request, too.
// The caller holds the lock.
func (c *conn) sendOrStick(s *Call, body []byte) (all bool) {
	sent := 0
	if len(c.out.b) <= maxOutput {
		sent = c.sendSome(s, body, s.plain)
	} else if len(body) > 0 {
		c.restsForOutput = true
	}
	if sent == len(body) {
		return true
	}
	c.keepRest(s, body[sent:])
	return false
}

// keepRest keeps the rest of an answer, or resets the stream if its connection keeps too much. The
// caller holds the lock.
func (c *conn) keepRest(s *Call, rest []byte) {
	size, id := len(rest), s.id // s may be used for another stream when this one is lost
	if c.resting > 0 && c.resting+size > maxRest {
		c.reset(s, http2.ErrCodeEnhanceYourCalm)
		return
	}
	within := origin.Within(s.client()) // from the head, which is not kept
	leave := c.server.rests.EnterParts(1+size/restPart, func() { c.dropRest(id) }, within[:]...)
	c.resting += size
	s.leaveRests = func() {
		c.resting -= size
		leave()
	}
	s.rest = bytes.Clone(rest)
	s.body, s.head = nil, Head{length: -1}
	c.stick(s)
}

// dropRest resets a stream, because clients keep too many rests.
func (c *conn) dropRest(id uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.streams[id]; s != nil && s.leaveRests != nil && !c.dead {
		c.reset(s, http2.ErrCodeEnhanceYourCalm)
		c.flush(false)
	}
}
