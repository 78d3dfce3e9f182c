package h2

import "time"

// Some frames cost the server work and bring it nothing: a setting or a ping that wants an answer,
// data without bytes, a priority, a stream that is opened and reset at once (CVE-2023-44487). Such
// frames are free for the client, so their number is bounded. A client that sends more loses its
// connection with ENHANCE_YOUR_CALM.
//
// The bound is a budget. It refills with time, and with every answered request, because a client
// that sends many requests also has more reasons for such frames: it updates windows, and cancels
// some of its requests. It refills with every part of an answer, too, because a long answer is a
// reason to update windows.

// Budget is a number of frames.
type Budget struct {
	Burst     int
	PerSecond int
	PerAnswer int // for each answered request
}

// budget is what is left of a Budget. The lock of the connection guards it.
type budget struct {
	Budget
	left int
	at   time.Time // of the last refill
}

func (b Budget) full(now time.Time) budget { return budget{b, b.Burst, now} }

// take uses one, and returns false if none is left.
func (b *budget) take(now func() time.Time) bool {
	if b.left == 0 {
		t := now()
		more := int(min(t.Sub(b.at), time.Hour) * time.Duration(b.PerSecond) / time.Second)
		if more == 0 {
			return false
		}
		b.left, b.at = min(more, b.Burst), t
	}
	b.left--
	return true
}

// earn adds n.
func (b *budget) earn(n int) { b.left = min(b.left+n, b.Burst) }
