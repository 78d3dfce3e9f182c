package h2

import "strconv"

// A header block for Call.AnswerHTTP has only fields that stand for themselves: they neither use
// nor change the client's table, so a block can be made without the connection (RFC 7541, 6.2.2).

// emptyTable is the instruction that begins a header block for a client without a table.
const emptyTable = 0x20

// statusIndex has the statuses of the static table.
var statusIndex = map[int]byte{200: 8, 204: 9, 206: 10, 304: 11, 400: 12, 404: 13, 500: 14}

// AppendStatus begins a header block.
func AppendStatus(b []byte, status int) []byte {
	if index, known := statusIndex[status]; known {
		return append(b, 0x80|index)
	}
	b = append(b, 8, 3) // the name of entry 8, and a value of three bytes
	return strconv.AppendInt(b, int64(status), 10)
}

// AppendField appends a field to a header block. The name may have upper-case letters, which it
// does not keep.
func AppendField[V string | []byte](b []byte, name string, value V) []byte {
	b = appendLength(append(b, 0), len(name))
	for i := range len(name) {
		c := name[i]
		if c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		b = append(b, c)
	}
	b = appendLength(b, len(value))
	return append(b, value...)
}

// appendLength appends the length of a text that is not compressed.
func appendLength(b []byte, n int) []byte {
	const most = 1<<7 - 1
	if n < most {
		return append(b, byte(n))
	}
	b = append(b, most)
	for n -= most; n >= 1<<7; n >>= 7 {
		b = append(b, byte(n)|1<<7)
	}
	return append(b, byte(n))
}
