package tenants

import (
	"slices"

	"github.com/google/uuid"
)

// Page selects a page of a list, newest first.
type Page struct {
	Limit int    // 1 to 1000; 0: 50
	After string // what the call before returned as next; "" from the start. Opaque
	// Bytes ends a page of the audit trail before it has Limit rows: after the row with which the
	// rows take so many bytes. 0: no bound.
	Bytes int
	// Fields bounds the bytes of Before and After of each row of the audit trail. Beyond it, a row
	// has only their sizes. Of a created or a deleted object, of which all fields are listed and
	// nothing must be found, it is a quarter. 0: no bound.
	Fields int
}

const (
	defaultPage = 50
	maxPage     = 1000
	exportFirst = 100     // rows of the first page of an export
	exportBytes = 1 << 20 // of a page of an export
)

// ExportPage returns the first page of an export of all rows. Few of its rows are in memory at
// once, also if they are large.
func ExportPage() Page { return Page{Limit: exportFirst, Bytes: exportBytes} }

// Following returns the page of an export after this one, which had so many rows and returned next.
// It has at most twice as many, because Postgres also sends the rows beyond Bytes.
func (p Page) Following(rows int, next string) Page {
	p.After, p.Limit = next, max(2, min(2*rows, maxPage))
	return p
}

// most returns how many rows to read: one more than the page has, to detect whether there are more.
func (p Page) most() int32 {
	limit := p.Limit
	if limit <= 0 {
		limit = defaultPage
	}
	return int32(min(limit, maxPage)) + 1 // at most 1001
}

// after returns the id of the last object of the previous page, or nil.
func (p Page) after() (*uuid.UUID, error) {
	if p.After == "" {
		return nil, nil
	}
	id, err := uuid.Parse(p.After)
	if err != nil {
		return nil, invalid("cursor", notAnyCursor)
	}
	return &id, nil
}

// cut removes the additional row, and returns where the next page continues, "" at the end.
func cut[T any](p Page, rows []T, id func(T) uuid.UUID) ([]T, string) {
	size := int(p.most()) - 1
	if len(rows) <= size {
		return rows, ""
	}
	return rows[:size], id(rows[size-1]).String()
}

// Match is the condition of a conditional write (If-Match). The zero value is none.
type Match struct {
	Any      bool    // the object must exist (If-Match: *)
	Versions []int64 // the object must be at one of these
}

func (m Match) conditional() bool { return m.Any || m.Versions != nil }

// missing returns the error of a conditional write to an object that does not exist.
func (m Match) missing() error {
	if m.conditional() {
		return ErrMissing
	}
	return nil
}

// check compares the condition with an existing object, at any of the versions by which answers
// have named its current state.
func (m Match) check(versions ...int64) error {
	if !m.conditional() || m.Any {
		return nil
	}
	for _, v := range versions {
		if slices.Contains(m.Versions, v) {
			return nil
		}
	}
	return ErrPreconditionFailed
}
