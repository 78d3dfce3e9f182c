package limit

// Growing is a State whose size depends on what it counts: it has an entry for each request of the
// window, or for each part of the window with a request.
//
// A coarse state keeps itself small. Once it has ExactEntries entries that count, a charge does not
// add one to the newest of them if both are in the same twentieth of a window (CoarseMS): it moves
// that one to the time of the charge. Its units then count for up to a twentieth of the window
// longer, so a coarse state can deny early, but it never allows more than the limit. The twins are
// coarse_log.lua and coarse_buckets.lua.
type Growing interface {
	State
	// Entries returns for how many entries the state has memory.
	Entries() int64
	// Coarsen sets whether charges are coarse from now on.
	Coarsen(coarse bool)
}

const (
	// ExactEntries is how many entries a coarse state has before charges are merged.
	ExactEntries = 10
	coarseParts  = 20
)

// CoarseMS returns the length of the parts of the window whose charges a coarse state merges.
func (n *Numbers) CoarseMS() int64 { return max(1, n.WindowMS/coarseParts) }

// merges reports whether a coarse state with so many entries merges a charge at an instant with its
// newest entry.
func (n *Numbers) merges(entries int, newest, at int64) bool {
	part := n.CoarseMS()
	return entries >= ExactEntries && newest/part == at/part
}
