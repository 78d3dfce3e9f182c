package limit

import (
	"math"
	"math/bits"
)

// MulDiv returns floor((a*b + add) / c) and the remainder, exactly. The product of limit and window
// exceeds 2^64, so it has 128 bits. All arguments are >= 0 and c > 0. A quotient that does not fit
// is math.MaxInt64. The twins are muldiv in prelude.lua, and share in evaluate_many.lua.
func MulDiv(a, b, c, add int64) (quotient, remainder int64) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	lo, carry := bits.Add64(lo, uint64(add), 0)
	hi += carry
	if hi >= uint64(c) {
		return math.MaxInt64, 0
	}
	q, r := bits.Div64(hi, lo, uint64(c))
	if q > math.MaxInt64 {
		return math.MaxInt64, 0
	}
	return int64(q), int64(r)
}

// productAtMost reports whether a*b <= c*d, exactly, for numbers >= 0.
func productAtMost(a, b, c, d int64) bool {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	hi2, lo2 := bits.Mul64(uint64(c), uint64(d))
	return hi < hi2 || hi == hi2 && lo <= lo2
}
