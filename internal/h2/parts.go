package h2

const (
	// longPart is from which size on a part of a body takes less than its bytes.
	longPart      = 1 << 10
	partsTogether = 64
	// A header list takes as long as a part for each listPart bytes beyond freeList, which can be a
	// few bytes of the connection. Most requests have less.
	freeList, listPart = 6 << 10, 256
)

// countParts tells Config.Parts of the parts of bodies that are shorter than longPart, and of long
// header lists, some at a time. What must not wait is done before.
func (c *conn) countParts(n float64) error {
	c.parts = max(0, c.parts+n)
	if c.parts < partsTogether || c.server.Parts == nil {
		return nil
	}
	now := int(c.parts)
	c.parts = 0
	if err := c.beforeWait(); err != nil {
		return err
	}
	c.server.Parts(c.remote, now)
	return nil
}
