package api

import "net"

// A client over TLS can send records that bring no data: a request for a new key takes the server
// 10 microseconds, and the client a tenth of that, if it prepared them. The TLS library ends a
// connection after 16 such records in a row, but not if each brings a byte in between. So these
// records are counted as parts of bodies are.

const (
	// emptyRecordParts is how many parts of a body take as long as a record without data.
	emptyRecordParts = 20
	// freeEmptyRecords are how many of them are not counted at once: clients change their key from
	// time to time.
	freeEmptyRecords = 16
)

// tlsRecords counts the records of a TLS connection that its client has sent. The TLS library reads
// from the connection when it has processed all complete records before, and each record with data
// was returned by a read of its own, or several. So what is left then are records without data.
type tlsRecords struct {
	header [5]byte // of the record that arrives
	have   int     // bytes of it
	left   int     // bytes of the record behind the header

	complete int // records since the last call of empty
	reads    int // that returned data, since then
	without  int // records without data that are not counted yet
}

// arrived follows bytes of the connection.
func (r *tlsRecords) arrived(b []byte) {
	for len(b) > 0 {
		if r.have < len(r.header) {
			n := copy(r.header[r.have:], b)
			r.have, b = r.have+n, b[n:]
			if r.have < len(r.header) {
				return
			}
			r.left = int(r.header[3])<<8 | int(r.header[4])
		}
		n := min(r.left, len(b))
		r.left, b = r.left-n, b[n:]
		if r.left == 0 {
			r.have = 0
			r.complete++
		}
	}
}

// empty returns how many records without data are to be counted now. It is called when all complete
// records were processed.
func (r *tlsRecords) empty() (n int) {
	r.without += max(0, r.complete-r.reads)
	r.complete, r.reads = 0, 0
	if r.without <= freeEmptyRecords {
		return 0
	}
	n, r.without = r.without, 0
	return n
}

// secureConn is a TLS connection. It tells the connection below of the reads that returned data.
type secureConn struct {
	net.Conn
	below *handshakeConn
}

// Read implements net.Conn.
func (c *secureConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.below.records.reads++
	}
	return n, err
}
