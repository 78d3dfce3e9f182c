package h2

import (
	"bytes"
	"io"
	"runtime"
	"slices"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	// maxOutput is the number of bytes for the client from which no request is begun. A client
	// that never reads is disconnected when a write has taken Limits.Write.
	maxOutput = 64 << 10
	// maxFrame is the size of frames that are sent and accepted: the least that HTTP/2 permits, and
	// far more than a call needs.
	maxFrame = 16 << 10
	// tableSize is the size of the tables of headers in both directions, the default of HTTP/2.
	tableSize = 4096
)

// output is what must be written to the client. It is an io.Writer for a Framer.
type output struct{ b []byte }

func (o *output) Write(b []byte) (int, error) {
	o.b = append(o.b, b...)
	return len(b), nil
}

// framerWrites takes the error of writing a frame to the output. The output accepts all writes, so
// it can only be a mistake in the parameters of a frame.
func (c *conn) framerWrites(err error) {
	if err != nil {
		panic("h2: invalid frame: " + err.Error())
	}
}

// fixedBlock is a header list that is sent often. The first times it is encoded, later its encoding
// is known: both fields of fixedBlocks are then in the client's table, and because all other fields
// are never indexed, the table does not change any more.
type fixedBlock struct {
	fields []hpack.HeaderField
	times  int
	bytes  []byte
}

// encode returns the encoded list. The caller holds the lock.
func (f *fixedBlock) encode(c *conn) []byte {
	if f.bytes != nil {
		return f.bytes
	}
	stable := c.answerHead.times > 0 && c.answerTail.times > 0
	f.times++
	block := c.encodeIndexed(f.fields)
	if stable {
		f.bytes = bytes.Clone(block)
	}
	return block
}

func (f *fixedBlock) forget() { f.times, f.bytes = 0, nil }

// encode encodes a header list without changing the client's table, in which fixedBlock has places:
// only a status that every table has is not marked as never indexed. The result is valid until the
// next call. The caller holds the lock.
func (c *conn) encode(fields []hpack.HeaderField) []byte {
	for i := range fields {
		fields[i].Sensitive = fields[i].Name != ":status" || !staticStatus(fields[i].Value)
	}
	return c.encodeIndexed(fields)
}

// staticStatus reports whether the static table of RFC 7541, appendix A, has a status.
func staticStatus(status string) bool {
	switch status {
	case "200", "204", "206", "304", "400", "404", "500":
		return true
	}
	return false
}

func (c *conn) encodeIndexed(fields []hpack.HeaderField) []byte {
	c.block.Reset()
	for _, f := range fields {
		c.framerWrites(c.encoder.WriteField(f)) // a buffer accepts all writes
	}
	return c.block.Bytes()
}

// sendHeaders appends a header block. The caller holds the lock.
func (c *conn) sendHeaders(id uint32, block []byte, end bool) {
	first := block[:min(len(block), maxFrame)]
	rest := block[len(first):]
	c.framerWrites(c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: first, EndHeaders: len(rest) == 0, EndStream: end}))
	for len(rest) > 0 {
		next := rest[:min(len(rest), maxFrame)]
		rest = rest[len(next):]
		c.framerWrites(c.framer.WriteContinuation(id, len(rest) == 0, next))
	}
}

// sendSome appends as much of b as the windows permit, and returns its length. end says that the
// stream ends with b. The caller holds the lock.
func (c *conn) sendSome(s *Call, b []byte, end bool) (sent int) {
	for sent < len(b) {
		n := min(int64(len(b)-sent), int64(maxFrame), s.sendWindow, c.sendWindow)
		if n <= 0 {
			break
		}
		next := sent + int(n)
		c.framerWrites(c.framer.WriteData(s.id, end && next == len(b), b[sent:next]))
		c.earnBySize(int(n), next == len(b) || n == maxFrame)
		s.sendWindow -= n
		c.sendWindow -= n
		sent = next
	}
	if sent > 0 {
		c.reads()
	}
	return sent
}

// updateBytes is how many bytes of an answer give a client reason to update a window once.
const updateBytes = 1 << 10

// earnBySize lets the client update its windows for n bytes. A client that opens its windows byte
// by byte gets as many frames, so a frame that a window has cut counts by its bytes only. The
// caller holds the lock.
func (c *conn) earnBySize(n int, uncut bool) {
	if uncut {
		c.frames.earn(1 + n/updateBytes)
		return
	}
	const each = updateBytes / 2 // the window of the stream, and that of the connection
	c.cutBytes += n
	c.frames.earn(c.cutBytes / each)
	c.cutBytes %= each
}

// stick notes that s waits for a window. The caller holds the lock.
func (c *conn) stick(s *Call) {
	s.stuckSince = time.Now()
	if len(c.stuck) == 0 {
		c.readAt = s.stuckSince
	}
	c.stuck = append(c.stuck, s)
	if c.unreadTimer == nil {
		c.unreadTimer = time.AfterFunc(c.server.Limits.Write, c.endUnread)
	}
}

// reads notes that the client reads, or at least accepts parts of answers. Nobody wants to know
// while no stream waits. The caller holds the lock.
func (c *conn) reads() {
	if len(c.stuck) > 0 {
		c.readAt = time.Now()
	}
}

// endUnread ends the connection if its client has read nothing in time while an answer waits. A
// silent client does not wake the reader, so this does. If the client reads other answers, only the
// rests that it has not read in time are reset: people behind a proxy may share the connection.
// The deadline of its own handler ends any other answer.
func (c *conn) endUnread() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.stuck) == 0 || c.dead {
		c.unreadTimer = nil
		return
	}
	since := time.Now().Add(-c.server.Limits.Write)
	if !c.readAt.After(since) {
		c.unread.Store(true)
		_ = c.SetReadDeadline(time.Unix(1, 0)) // a closed connection has no reader
		return
	}
	next := c.readAt
	for _, s := range slices.Clone(c.stuck) { // a reset changes the list
		switch {
		case s.rest == nil:
		case !s.stuckSince.After(since):
			c.reset(s, http2.ErrCodeEnhanceYourCalm)
		case s.stuckSince.Before(next):
			next = s.stuckSince
		}
	}
	if len(c.stuck) == 0 {
		c.unreadTimer = nil
	} else {
		c.unreadTimer.Reset(next.Sub(since))
	}
	c.flush(false)
}

// unstick removes s from the waiting streams. The caller holds the lock.
func (c *conn) unstick(s *Call) {
	for i, other := range c.stuck {
		if other == s {
			c.stuck = append(c.stuck[:i], c.stuck[i+1:]...)
			return
		}
	}
}

// resume continues the streams that wait, the first one first, as far as the output and the window
// of the connection have space for them. A handler that is woken for nothing would cost much more
// than the frame that caused it. The caller holds the lock.
func (c *conn) resume() {
	c.restsForOutput = false
	if len(c.stuck) == 0 {
		return
	}
	kept := c.stuck[:0]
	space := c.sendWindow // without what the woken handlers will send
	for i, s := range c.stuck {
		if space <= 0 {
			kept = append(kept, c.stuck[i:]...)
			break
		}
		if s.sendWindow <= 0 {
			kept = append(kept, s)
			continue
		}
		if s.rest == nil {
			s.windowWait.wake() // its handler continues itself, and leaves the list
			space -= min(s.sendWindow, int64(s.unsent))
			kept = append(kept, s)
			continue
		}
		if len(c.out.b) > maxOutput { // until the socket accepts more, which ends in time
			s.stuckSince, c.restsForOutput = time.Now(), true
			kept = append(kept, s)
			continue
		}
		sent := c.sendSome(s, s.rest, s.plain)
		s.rest = s.rest[sent:]
		space -= int64(sent)
		if len(s.rest) > 0 {
			kept = append(kept, s)
			continue
		}
		c.sendTail(s)
	}
	clear(c.stuck[len(kept):])
	c.stuck = kept
}

// flush writes the output, unless another goroutine does. The caller holds the lock, which flush
// releases while it writes. patient lets goroutines that can run go first: they probably have more
// to write.
func (c *conn) flush(patient bool) {
	if c.writing || len(c.out.b) == 0 || c.dead {
		return
	}
	c.writing = true
	if patient {
		c.mu.Unlock()
		runtime.Gosched()
		c.mu.Lock()
	}
	for len(c.out.b) > 0 && !c.dead {
		c.out.b, c.spare = c.spare[:0], c.out.b
		c.mu.Unlock()
		// Setting a deadline costs as much as decoding a request, so it may be up to half too late.
		if now := time.Now(); c.writeBy.Sub(now) < c.server.Limits.Write {
			c.writeBy = now.Add(c.server.Limits.Write * 3 / 2)
			_ = c.SetWriteDeadline(c.writeBy) // a closed connection fails to write
		}
		_, err := c.Write(c.spare)
		if len(c.spare) > maxFrame {
			runtime.Gosched() // others come first: many connections with large answers would keep the processors
		}
		c.mu.Lock()
		if cap(c.spare) > maxOutput {
			c.spare = nil
		}
		if err != nil {
			c.kill()
		}
		if c.restsForOutput && len(c.out.b) <= maxOutput {
			c.resume()
		}
	}
	c.writing = false
	c.drained.Broadcast()
}

// awaitOutput waits while the output is large, because the client does not read it. The caller
// holds the lock.
func (c *conn) awaitOutput() {
	if len(c.out.b) <= maxOutput {
		return
	}
	c.flush(false)
	for len(c.out.b) > maxOutput && c.writing && !c.dead {
		c.drained.Wait()
	}
}

// flushAll writes the output, after the goroutine that does so has finished. The caller holds the
// lock.
func (c *conn) flushAll() {
	for c.writing && !c.dead {
		c.drained.Wait()
	}
	c.flush(false)
}

// finishWriting writes everything and closes the connection for writing. The client then reads
// the last frames. If there were unread bytes, closing both directions would reset the connection,
// and the client might lose them. So what the client still sends is discarded, and from lingerBytes
// on left unread, for lingerTime in all.
func (c *conn) finishWriting() {
	c.mu.Lock()
	c.flushAll()
	c.dead = true // a later write would fail, and close the connection before the client has read
	c.mu.Unlock()
	half, ok := c.Conn.(interface{ CloseWrite() error })
	closeAt := time.Now().Add(lingerTime)
	if !ok || half.CloseWrite() != nil || c.SetReadDeadline(closeAt) != nil {
		return
	}
	if n, err := io.Copy(io.Discard, io.LimitReader(c.Conn, lingerBytes)); err == nil && n == lingerBytes {
		time.Sleep(time.Until(closeAt))
	}
}

const (
	lingerTime  = 500 * time.Millisecond
	lingerBytes = 256 << 10
)
