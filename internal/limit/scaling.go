package limit

// Scaling is what remains known of a Scale for some time, so that units that were charged before it
// are returned in the same ratio. The ratio is that of the limits, or nothing returns: To is 0.
type Scaling struct {
	AtMS int64 // when
	Share
}

const (
	// ScalingLifeMS is how long a Scaling is kept: longer than any lease, its record, and the
	// attempts to complete a return that the store did not answer.
	ScalingLifeMS = 60_000
	maxScalings   = 8 // of a counter
)

// ScalingOf returns what must be known of the change that Scale(s, n, to, t) will make. If s has
// more than its limit, the rest is forgotten, and it is not known whose units that were: nothing
// returns. A bucket is charged in time, whose rounding depends on the limit: nothing returns, too.
func ScalingOf(s State, n, to *Numbers, t int64) Scaling {
	c := Scaling{AtMS: t, Share: Share{To: to.Limit, Of: n.Limit}}
	beyond := *n
	beyond.Overage = true // so that more than the limit is seen
	if n.Algorithm.Bucket() || beyond.Enforced()-s.Remaining(&beyond, t) > n.Limit {
		c.To = 0
	}
	return c
}

// AppendScaling adds a scaling to those of a counter, and leaves out old ones. If there are too
// many, units that were charged before the oldest of them do not return. The twin is remember in
// amend.lua.
func AppendScaling(all []Scaling, c Scaling) []Scaling {
	var kept []Scaling
	for _, old := range all {
		if old.AtMS+ScalingLifeMS > c.AtMS {
			kept = append(kept, old)
		}
	}
	if len(kept) == maxScalings {
		kept = kept[1:]
		kept[0].To = 0
	}
	return append(kept, c)
}

// ScaledUnits returns how many units of a counter are left of some that were charged at chargedMS
// (0: unknown), rounded down, so that no more returns than was charged. If it is unknown whether
// they were charged before a scaling, it is the smaller number. The twin is scaled in refund.lua.
func ScaledUnits(all []Scaling, units, chargedMS int64) int64 {
	for _, c := range all {
		switch {
		case chargedMS > c.AtMS:
		case chargedMS == c.AtMS || chargedMS == 0:
			units = min(units, c.down(units))
		default:
			units = c.down(units)
		}
	}
	return units
}

// down returns floor(a x To/Of), or 0 if it is more than any count.
func (s Share) down(a int64) int64 {
	q, _ := MulDiv(a, s.To, s.Of, 0)
	if q > MaxFixedLimit {
		return 0
	}
	return q
}
