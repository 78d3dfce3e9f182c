package h2

import (
	"time"

	"golang.org/x/net/http2"
)

// A Framer reports streams that do not exist, frames in a wrong order and frames of a wrong form.
// The functions here check what depends on the state of a stream. A StreamError resets a stream, a
// ConnectionError ends the connection.

// takeHeaders processes a header block, which opens or ends a stream.
func (c *conn) takeHeaders(f *http2.HeadersFrame) error {
	id, end := f.StreamID, f.StreamEnded()
	selfish := f.HasPriority() && f.Priority.StreamDep == id
	s := c.allocate()
	c.decoding = &s.head
	if err := c.decode(f); err != nil {
		return err
	}
	if err := c.countParts(float64(s.head.size-freeList) / listPart); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	opened, err := c.openStream(s, id, end)
	if !opened || err != nil || selfish {
		if opened {
			c.streams[id] = s
			c.open++
		} else {
			s.head.reset()
			c.free = append(c.free, s)
		}
		if err == nil && selfish {
			err = streamError(id, http2.ErrCodeProtocol)
		}
		return err
	}
	c.streams[id] = s
	c.open++
	if s.direct = c.server.Direct(&s.head); !end && s.direct {
		c.fresh = append(c.fresh, s)
		return nil
	}
	c.begin(s)
	return nil
}

func streamError(id uint32, code http2.ErrCode) error {
	return http2.StreamError{StreamID: id, Code: code}
}

// allocate returns a stream that is not open. While the output is large, it waits: what has arrived
// already must not add to it.
func (c *conn) allocate() *Call {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.awaitOutput()
	if n := len(c.free); n > 0 {
		s := c.free[n-1]
		c.free = c.free[:n-1]
		return s
	}
	s := &Call{conn: c}
	s.head.reset()
	return s
}

// decode decodes a header block, of one or more frames, to c.decoding.
func (c *conn) decode(f *http2.HeadersFrame) error {
	fragment, ended := f.HeaderBlockFragment(), f.HeadersEnded()
	size := 0
	for n := 1; ; n++ {
		// The table of the decoder needs all fragments, and they are compressed. A list may be
		// twice as large as the limit before its connection ends.
		if size += len(fragment); size > 2*c.server.Limits.HeaderBytes || n > maxFragments {
			return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
		}
		if err := c.decodeFragment(fragment); err != nil {
			return err
		}
		if ended {
			break
		}
		if c.partial.IsZero() {
			c.partial = time.Now()
		}
		frame, err := c.framer.ReadFrame()
		if err != nil {
			return err
		}
		next := frame.(*http2.ContinuationFrame) // the framer accepts nothing else here
		fragment, ended = next.HeaderBlockFragment(), next.HeadersEnded()
	}
	c.partial = time.Time{}
	if err := c.decoder.Close(); err != nil {
		return http2.ConnectionError(http2.ErrCodeCompression)
	}
	return nil
}

// decodeFragment decodes in steps, because each byte can be a field of the client's table: a frame
// of 16 KiB would take as long as a hundred requests.
func (c *conn) decodeFragment(fragment []byte) error {
	for len(fragment) > 0 {
		step := min(len(fragment), decodeStep)
		if _, err := c.decoder.Write(fragment[:step]); err != nil {
			return http2.ConnectionError(http2.ErrCodeCompression)
		}
		if c.decoding.size > 2*c.server.Limits.HeaderBytes {
			return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
		}
		fragment = fragment[step:]
	}
	return nil
}

// openStream decides about a header list. opened is false if it belongs to no new stream. The
// caller holds the lock.
func (c *conn) openStream(s *Call, id uint32, end bool) (opened bool, err error) {
	switch {
	case id%2 == 0:
		return false, http2.ConnectionError(http2.ErrCodeProtocol)
	case id <= c.lastID:
		return false, c.takeTrailer(&s.head, id, end)
	}
	if c.draining >= refusing {
		return false, nil
	}
	c.lastID = id
	if c.open >= c.server.Limits.Streams {
		if !c.resets.take(time.Now) {
			return false, http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
		}
		c.note(id, !end)
		return false, streamError(id, http2.ErrCodeRefusedStream)
	}
	head := s.head
	*s = Call{conn: c, id: id, head: head, body: s.body[:0], ended: end, window: c.server.Limits.Window, sendWindow: c.initial}
	switch {
	case head.truncated:
		return true, streamError(id, http2.ErrCodeFrameSize)
	case !head.request(), end && head.length > 0:
		return true, streamError(id, http2.ErrCodeProtocol)
	}
	return true, nil
}

// takeTrailer processes a header list for a stream that is not new. The caller holds the lock.
func (c *conn) takeTrailer(h *Head, id uint32, end bool) error {
	s := c.streams[id]
	switch {
	case s == nil:
		return c.afterEnd(id, http2.ConnectionError(http2.ErrCodeStreamClosed))
	case s.ended:
		return streamError(id, http2.ErrCodeStreamClosed)
	case !end, !h.trailer(), s.head.length >= 0 && s.received != s.head.length:
		return streamError(id, http2.ErrCodeProtocol)
	}
	c.endBody(s)
	return nil
}

// afterEnd returns the error of a frame for a stream that has ended: closed if the client must know
// that. The caller holds the lock.
func (c *conn) afterEnd(id uint32, closed error) error {
	if c.neverOpen(id) {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	if !c.frames.take(time.Now) {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	if id > c.lastID {
		return nil // it came too late for this connection
	}
	for _, was := range c.closed {
		if was.id == id && was.early {
			return nil // the client does not know yet
		}
		if was.id == id {
			return closed
		}
	}
	if _, fatal := closed.(http2.ConnectionError); fatal {
		return http2.ConnectionError(http2.ErrCodeProtocol) // it was skipped, or is long forgotten
	}
	return closed
}

// neverOpen reports whether the client has not opened a stream, nor tried to while the connection
// is about to end. The caller holds the lock.
func (c *conn) neverOpen(id uint32) bool {
	return id%2 == 0 || id > c.lastID && c.draining < refusing
}

// note remembers a stream that was refused. The caller holds the lock.
func (c *conn) note(id uint32, early bool) {
	c.closed[c.closedAt%len(c.closed)] = closedStream{id, early}
	c.closedAt++
}

// endBody notes that a stream's body is complete. The caller holds the lock.
func (c *conn) endBody(s *Call) {
	s.ended = true
	if s.begun {
		s.wake()
		return
	}
	c.begin(s)
}

// takeData processes a part of a body.
func (c *conn) takeData(f *http2.DataFrame) error {
	size, data, end := int(f.Length), f.Data(), f.StreamEnded()
	if err := c.countParts(1 - float64(len(data))/longPart); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inWindow -= size; c.inWindow < 0 {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	// The window of the connection does not wait for anybody to read the body, so that a stream
	// cannot block the others. The windows of the streams limit what is kept.
	if most := c.server.Limits.ConnWindow; c.inWindow < most/2 {
		c.framerWrites(c.framer.WriteWindowUpdate(0, uint32(most-c.inWindow)))
		c.inWindow = most
	}
	s := c.streams[f.StreamID]
	switch {
	case s == nil:
		return c.afterEnd(f.StreamID, streamError(f.StreamID, http2.ErrCodeStreamClosed))
	case s.ended:
		return streamError(s.id, http2.ErrCodeStreamClosed)
	}
	if s.window -= size; s.window < 0 {
		return streamError(s.id, http2.ErrCodeFlowControl)
	}
	if len(data) == 0 && !end && !c.frames.take(time.Now) {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	s.received += int64(len(data))
	if declared := s.head.length; declared >= 0 && (s.received > declared || end && s.received != declared) {
		return streamError(s.id, http2.ErrCodeProtocol)
	}
	if !s.replied { // nobody reads it any more
		s.body = append(s.body, data...)
	}
	s.refill(size - len(data)) // padding
	if end {
		c.endBody(s)
	} else if s.begun {
		s.wake()
	}
	return nil
}

// refill lets the client send n bytes more, of which it is told when they are many. The caller
// holds the lock.
func (s *Call) refill(n int) {
	s.credit += n
	if s.credit < s.conn.server.Limits.Window/2 || s.ended || s.gone || s.closed {
		return
	}
	s.conn.framerWrites(s.conn.framer.WriteWindowUpdate(s.id, uint32(s.credit)))
	s.window += s.credit
	s.credit = 0
}

// takeSettings applies the client's settings and acknowledges them.
func (c *conn) takeSettings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return c.charge()
	}
	if f.NumSettings() > maxSettings {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.frames.take(time.Now) {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	window := c.initial
	if err := f.ForeachSetting(func(s http2.Setting) error { return c.takeSetting(s, &window) }); err != nil {
		return err
	}
	if err := c.setInitial(window); err != nil {
		return err
	}
	c.framerWrites(c.framer.WriteSettingsAck())
	c.resume()
	return nil
}

// setInitial sets the window of streams, also of those that are open. The caller holds the lock.
func (c *conn) setInitial(window int64) error {
	change := window - c.initial
	if change == 0 {
		return nil
	}
	c.initial = window
	for _, s := range c.streams {
		if s.sendWindow += change; s.sendWindow > maxWindow {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
	}
	return nil
}

// takeSetting applies one setting, except for the window of streams. A frame may have that several
// times, its last value counts, and each change looks at all streams. The caller holds the lock.
func (c *conn) takeSetting(s http2.Setting, window *int64) error {
	if err := s.Valid(); err != nil {
		return err
	}
	switch s.ID {
	case http2.SettingInitialWindowSize:
		*window = int64(s.Val)
	case http2.SettingHeaderTableSize:
		if s.Val < tableSize { // rare, and then nothing is indexed at all
			c.encoder.SetMaxDynamicTableSizeLimit(0)
			c.tableless = true
			c.answerHead.forget()
			c.answerTail.forget()
		}
	}
	return nil
}

// takePing answers a ping.
func (c *conn) takePing(f *http2.PingFrame) error {
	if f.IsAck() {
		if f.Data == drainPing {
			c.stopAccepting()
		}
		return c.charge()
	}
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.lastPing) < c.server.Limits.LeastPing {
		c.strikes++
	}
	c.lastPing = now
	if c.strikes > maxStrikes || !c.frames.take(time.Now) {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	c.framerWrites(c.framer.WritePing(true, f.Data))
	return nil
}

// takeWindow lets the server send more.
func (c *conn) takeWindow(f *http2.WindowUpdateFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.frames.take(time.Now) {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	if f.StreamID == 0 {
		if c.sendWindow += int64(f.Increment); c.sendWindow > maxWindow {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		c.reads()
		c.resume()
		return nil
	}
	s := c.streams[f.StreamID]
	if s == nil {
		if c.neverOpen(f.StreamID) {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		return nil
	}
	if s.sendWindow += int64(f.Increment); s.sendWindow > maxWindow {
		return streamError(s.id, http2.ErrCodeFlowControl)
	}
	c.resume()
	return nil
}

// takeReset ends a stream that the client has cancelled. If somebody answers it, it takes one of
// the connection's streams until that is done.
func (c *conn) takeReset(f *http2.RSTStreamFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.neverOpen(f.StreamID) {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	if !c.resets.take(time.Now) {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	if s := c.streams[f.StreamID]; s != nil {
		c.lose(s, false)
		return nil
	}
	for i := range c.closed { // the client knows that the stream has ended
		if c.closed[i].id == f.StreamID {
			c.closed[i].early = false
		}
	}
	return nil
}
