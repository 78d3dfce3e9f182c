package h2

import "time"

// shortRest is how many bytes of a body an answer waits for.
const shortRest = 4 << 10

// awaitEnd waits until the body of a request has arrived, if its rest is short. The handler has
// returned, perhaps without reading the body, as with an invalid key. If the answer came first, the
// client would not send the rest, and be told so by a reset, which some report instead of the
// answer, such as curl 7.88. The rest is usually on its way, so the time for it is short. The
// request keeps its place meanwhile.
func (s *Call) awaitEnd() {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	left, patience := s.head.length-s.received, c.server.Limits.BodyEnd
	if patience == 0 || s.ended || s.gone || s.expectContinue || s.head.length < 0 || left > min(shortRest, int64(s.window)) {
		return
	}
	s.bodyClosed = true
	s.bodyWait.wake() // only one can wait
	late := false
	timer := time.AfterFunc(patience, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		late = true
		s.bodyWait.wake()
	})
	defer timer.Stop()
	for !s.ended && !s.gone && !late {
		s.bodyWait.wait(&c.mu)
	}
}
