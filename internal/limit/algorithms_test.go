package limit

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMuldiv(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 3))
	for range 100_000 {
		a, b := r.Int64N(1<<r.IntN(62)+1), r.Int64N(1<<r.IntN(62)+1)
		c, add := 1+r.Int64N(1<<r.IntN(62)+1), r.Int64N(1<<r.IntN(62)+1)
		sum := new(big.Int).Mul(big.NewInt(a), big.NewInt(b))
		q, rest := sum.Add(sum, big.NewInt(add)).QuoRem(sum, big.NewInt(c), new(big.Int))
		got, gotRest := MulDiv(a, b, c, add)
		if !q.IsInt64() {
			require.EqualValues(t, math.MaxInt64, got)
			continue
		}
		require.Equal(t, q.Int64(), got)
		require.Equal(t, rest.Int64(), gotRest)
	}
}

// The largest products of a valid rule exceed 2^63.
func TestNumbersValidAtTheEndsOfTheirRanges(t *testing.T) {
	n := Numbers{Algorithm: TokenBucket, Limit: MaxLimit, Burst: MaxLimit, WindowMS: MaxWindowMS}
	require.True(t, n.Valid())
	n.Limit--
	require.False(t, n.Valid(), "a bucket with a refill of more than 366 days")
	n.WindowMS -= 32
	require.True(t, n.Valid())
}
