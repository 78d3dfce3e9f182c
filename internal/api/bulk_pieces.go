package api

import (
	"bytes"
	"context"
	"io"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// The lines of 20 MB take a processor for 15 seconds until they are decoded and validated. So an
// import has a turn of its tenant among long work for each piece of its body, and none while it
// waits for its client.
//
// An import keeps one of few slots, and must not fail when it has begun because others are busy. So
// a piece that has waited for importTurnWait is decoded without a turn. An import that gets none
// uses about a sixth of a processor.
const (
	importPiece    = 64 << 10 // bytes; usually 20 to 50 ms
	importTurnWait = 250 * time.Millisecond
)

// piecesInTurn is the body of an import. It returns from Read with a turn of the request, which
// ends with the piece.
type piecesInTurn struct {
	ctx   context.Context
	q     *request
	body  io.Reader
	piece [importPiece]byte
	rest  []byte // of the piece
	err   error  // after the piece
}

// Read reads more of the piece, or waits for the next one.
func (b *piecesInTurn) Read(p []byte) (int, error) {
	if len(b.rest) == 0 && b.err == nil {
		b.next()
	}
	if len(b.rest) == 0 {
		return 0, b.err
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// next reads a piece. At the end of the body there is a turn, too, because a line may end there.
func (b *piecesInTurn) next() {
	b.q.endTurn()
	n := 0
	for n < len(b.piece) && b.err == nil {
		var more int
		more, b.err = b.body.Read(b.piece[n:])
		n += more
	}
	b.rest = b.piece[:n]
	turns := &b.q.capacity.bodies
	b.q.turn = turns.large.TryWithin(b.q.actor.TenantID(), turns.piece)
}

// tooManyMembers returns the error of a line with more labels or overrides than a subject can have.
// Otherwise each of them would be decoded and validated first: a line of 1 MiB has 130 000, which
// take a second. data has passed checkJSON.
func tooManyMembers(data []byte) []limit.FieldError {
	if len(data) <= smallDocument { // the store finds too many labels, and overrides need more
		return nil
	}
	d := jsontext.NewDecoder(bytes.NewReader(data), jsontext.AllowDuplicateNames(true))
	if token, err := d.ReadToken(); err != nil || token.Kind() != '{' {
		return nil
	}
	var wrong []limit.FieldError
	for d.PeekKind() == '"' {
		token, err := d.ReadToken()
		if err != nil {
			return nil
		}
		name := token.String() // the token is valid until the next one
		value, err := d.ReadValue()
		switch {
		case err != nil:
			return nil
		case name == "labels" && hasMore(value, tenants.MaxLabels):
			wrong = append(wrong, limit.FieldProblem(name, tenants.TooManyLabels))
		case name == "overrides" && hasMore(value, limit.MaxRules):
			wrong = append(wrong, limit.FieldProblem(name, tooManyOverrides))
		}
	}
	return wrong
}

// tooManyOverrides is the error of a line that cannot be valid, because a subject has at most one
// override for each rule of its tenant.
var tooManyOverrides = limit.Wrong("Remove overrides.", "may be at most %d", limit.MaxRules)

// hasMore reports whether a value is an object with more than most members.
func hasMore(value jsontext.Value, most int) bool {
	if value.Kind() != '{' {
		return false
	}
	d := jsontext.NewDecoder(bytes.NewReader(value), jsontext.AllowDuplicateNames(true))
	if _, err := d.ReadToken(); err != nil {
		return false
	}
	for members := 0; d.PeekKind() == '"'; members++ {
		if members == most {
			return true
		}
		if d.SkipValue() != nil || d.SkipValue() != nil { // the name, and the value
			return false
		}
	}
	return false
}
