package api

import (
	"bytes"
	"strconv"
	"sync/atomic"
)

// framing follows the requests on a connection that net/http reads, to find one with two lengths:
// with Content-Length and Transfer-Encoding, or in HTTP/1.0 with Transfer-Encoding. Proxies differ
// in which of them they use, so what follows may be part of the body for one and a second request
// for another (RFC 9112, 6.3). net/http uses Transfer-Encoding, removes the other header and keeps
// the connection. framing makes the head malformed instead, so that net/http answers 400 and
// closes. It does the same with a head of more than maxHeadLines lines: to read thousands of short
// ones takes net/http as long as many requests. It also counts chunks: see parts.go.
//
// It reads the same bytes as net/http, in the same order. What it cannot follow, net/http refuses.
type framing struct {
	state   framingState
	line    [64]byte // the beginning of the current line
	size    int      // of the current line
	lines   int      // of the head, before the current one
	begun   bool     // the line of the request was read
	version int      // how much of oldVersion ends what was read of it
	length  int64    // Content-Length
	left    int64    // of the body or the chunk
	chunks  int      // since takeChunks
	seen    uint8
	poison  atomic.Pointer[string] // the status line for a request that net/http must not read
}

// maxHeadLines is the maximum number of lines in a head, without the line of the request.
const maxHeadLines = 100

type framingState uint8

const (
	inHead framingState = iota
	inBody
	inChunkSize
	inChunk
	inChunkEnd
	inTrailer
)

// The status lines in place of those that net/http gives.
var (
	twoLengths = "400 Bad Request: it has a Transfer-Encoding, and a Content-Length or the version HTTP/1.0"
	manyLines  = "431 Request Header Fields Too Large"
)

// The properties of a head.
const (
	hasLength = 1 << iota
	hasEncoding
	isHTTP10
	unclearLength
)

const oldVersion = " HTTP/1.0"

// follow reads b. It returns how many bytes of it net/http may read: fewer than all only if it must
// not read the request. Its last byte is then a line without a colon, so the head is malformed.
func (f *framing) follow(b []byte) int {
	for i := 0; i < len(b); {
		if f.state == inBody || f.state == inChunk {
			n := min(f.left, int64(len(b)-i))
			f.left -= n
			i += int(n)
			if f.left == 0 {
				f.bodyRead()
			}
			continue
		}
		c := b[i]
		if f.state == inHead && !f.begun && f.size == 0 && (c == '\r' || c == '\n') {
			i++ // net/http ignores empty lines between two requests, or refuses the second one
			continue
		}
		if f.state == inHead && f.begun && f.size == 0 {
			if wrong := f.refusal(c == '\r' || c == '\n'); wrong != nil {
				b[i] = 'x'
				f.poison.Store(wrong)
				return i + 1
			}
		}
		part, _, ends := bytes.Cut(b[i:], []byte{'\n'})
		i += len(part)
		f.addToLine(part)
		if ends {
			i++
			f.endLine(bytes.TrimSuffix(f.line[:min(f.size, len(f.line))], []byte{'\r'}))
			f.size = 0
		}
	}
	return len(b)
}

// addToLine reads a part of a line.
func (f *framing) addToLine(part []byte) {
	if f.size < len(f.line) {
		copy(f.line[f.size:], part)
	}
	f.size += len(part)
	if f.begun {
		return
	}
	if len(part) > len(f.line) { // its end decides: the path can be long
		f.version, part = 0, part[len(part)-len(f.line):]
	}
	for _, c := range part {
		f.noteVersion(c)
	}
}

// refusal returns the status line for a request that net/http must not read, or nil, at the
// beginning of a line after the first one.
func (f *framing) refusal(ends bool) *string {
	switch {
	case ends && f.ambiguous():
		return &twoLengths
	case !ends && f.lines > maxHeadLines:
		return &manyLines
	}
	return nil
}

func (f *framing) ambiguous() bool {
	return f.seen&hasEncoding != 0 && f.seen&(hasLength|isHTTP10) != 0 || f.seen&unclearLength != 0
}

func (f *framing) bodyRead() {
	if f.state == inChunk {
		f.state = inChunkEnd
		return
	}
	f.begin()
}

// begin begins the next request.
func (f *framing) begin() {
	f.state, f.begun, f.version, f.seen, f.length, f.lines = inHead, false, 0, 0, 0, 0
}

// endLine reads a whole line, of which only the beginning is known.
func (f *framing) endLine(line []byte) {
	switch f.state {
	case inHead:
		f.headLine(line)
	case inChunkSize:
		f.chunks++
		text, _, _ := bytes.Cut(line, []byte{';'})
		size, _ := strconv.ParseInt(string(bytes.TrimSpace(text)), 16, 64) // net/http refuses a wrong one
		if f.left = size; size > 0 {
			f.state = inChunk
		} else {
			f.state = inTrailer
		}
	case inChunkEnd:
		f.state = inChunkSize
	case inTrailer:
		if f.chunks++; len(line) == 0 {
			f.begin()
		}
	}
}

// takeChunks returns how many chunks were read since the last call, beyond one for longPart of the
// bytes that were read.
func (f *framing) takeChunks(read int) (n int) {
	n, f.chunks = f.chunks-read/longPart, 0
	return n
}

// noteVersion looks for oldVersion at the end of the request line, which may be longer than f.line.
func (f *framing) noteVersion(c byte) {
	switch {
	case c == '\r':
	case f.version < len(oldVersion) && c == oldVersion[f.version]:
		f.version++
	case c == oldVersion[0]:
		f.version = 1
	default:
		f.version = 0
	}
}

func (f *framing) headLine(line []byte) {
	f.lines++
	switch {
	case !f.begun:
		if f.begun = true; f.version == len(oldVersion) {
			f.seen |= isHTTP10
		}
	case len(line) > 0:
		f.header(line)
	case f.seen&hasEncoding != 0:
		f.state = inChunkSize
	case f.length > 0:
		f.state, f.left = inBody, f.length
	default:
		f.begin()
	}
}

func (f *framing) header(line []byte) {
	name, value, _ := bytes.Cut(line, []byte{':'})
	switch {
	case len(name) == len("content-length") && is(name, "content-length"):
		length, err := strconv.ParseInt(string(bytes.Trim(value, " \t")), 10, 64)
		if f.seen |= hasLength; err != nil || length < 0 || f.size > len(f.line) {
			f.seen |= unclearLength // such as one that continues on the next line or beyond f.line
		}
		f.length = length
	case len(name) == len("transfer-encoding") && is(name, "transfer-encoding"):
		f.seen |= hasEncoding
	}
}
