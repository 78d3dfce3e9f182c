package api

import (
	"fmt"
	"io"
	"net/http"
)

// csvBounds is a reader of a table that bounds its records, because encoding/csv takes some 140
// bytes for every cell, before it reports that a record has too many.
//
// Cells that the first record does not have are cut off after one more, so that encoding/csv still
// reports their record. A record that is too long ends the table with a *Problem.
type csvBounds struct {
	table   io.Reader
	columns int // cells of the first record; 0: it has not ended
	line    int // in which the record begins, from 1
	ends    int // ends of lines in the record
	length  int // of the record, in bytes
	cells   int // of the record, without the last one
	quoted  bool
	err     error
}

// maxCSVHeader limits the first record of a table, in bytes. The names of all columns take 88.
const maxCSVHeader = 4 << 10

func newCSVBounds(table io.Reader) *csvBounds { return &csvBounds{table: table, line: 1} }

// Read reads more of the table, without the cells that are cut off.
func (c *csvBounds) Read(p []byte) (int, error) {
	for c.err == nil && len(p) > 0 {
		var n int
		n, c.err = c.table.Read(p)
		if n = c.keep(p[:n]); n > 0 {
			return n, nil
		}
	}
	return 0, c.err
}

// keep moves the bytes that are not cut off to the start of p, and returns how many there are.
func (c *csvBounds) keep(p []byte) (kept int) {
	for _, b := range p {
		c.length++
		switch {
		case b == '"':
			c.quoted = !c.quoted // the two quotes of a quoted one change nothing
		case b == ',' && !c.quoted:
			c.cells++
		case b == '\n':
			c.ends++
		}
		if b == '\n' && !c.quoted {
			c.end()
		} else if c.err = c.tooLong(); c.err != nil {
			return kept
		} else if c.columns > 0 && c.cells > c.columns {
			continue
		}
		p[kept] = b
		kept++
	}
	return kept
}

// end ends a record.
func (c *csvBounds) end() {
	// encoding/csv skips empty lines, and no name of a column has one letter.
	if c.columns == 0 && c.length > len("\r\n") {
		c.columns = c.cells + 1
	}
	c.line += c.ends
	c.length, c.cells, c.ends = 0, 0, 0
}

func (c *csvBounds) tooLong() error {
	most := maxImportLine
	if c.columns == 0 {
		most = maxCSVHeader
	}
	if c.length <= most {
		return nil
	}
	return newProblem(http.StatusRequestEntityTooLarge, codeBodyTooLarge,
		fmt.Sprintf("Line %d: a row may be at most %d bytes long, and the first one %d.", c.line, maxImportLine, maxCSVHeader))
}
