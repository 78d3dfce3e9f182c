package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The notes use these shares, so functions of net/http must not count as Weir's.
func TestSummaryAddsUpParts(t *testing.T) {
	text := summary(`File: weir
Type: cpu
Showing nodes accounting for 5.54s, 100% of 5.54s total
      flat  flat%   sum%        cum   cum%
     2.10s 37.90% 37.90%      2.10s 37.90%  internal/runtime/syscall/linux.Syscall6
     0.40s  7.20% 45.10%      0.50s  9.03%  weir/internal/check.(*Checker).CheckIn
     0.30s  5.40% 50.50%      0.30s  5.40%  weir/internal/check/x.(*T).f
     0.20s  3.60% 54.10%      0.20s  3.60%  net/http.(*conn).serve
     0.10s  1.80% 55.90%      0.10s  1.80%  net.(*conn).Read (inline)
     0.01s  0.18% 56.08%      0.01s  0.18%  strconv.AppendInt
`)
	for _, line := range []string{"  37.9%  system calls\n", "  12.6%  weir/internal/check\n", "   3.6%  net/http\n", "   1.8%  net\n"} {
		require.Contains(t, text, line)
	}
	require.NotContains(t, text, "others", "too small a share")
	require.Less(t, strings.Index(text, "system calls"), strings.Index(text, "net/http"), "the largest first")
	_, ours, found := strings.Cut(text, "Weir's functions, cumulative")
	require.True(t, found)
	require.Contains(t, ours, "(*Checker).CheckIn")
	require.NotContains(t, ours, "Syscall6")
	require.Contains(t, text, "Type: cpu")
}
