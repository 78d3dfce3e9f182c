package check

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func callOf(counters int) *Call {
	call := &Call{Cost: 1}
	for range counters {
		call.Counters = append(call.Counters, Counter{Numbers: Numbers{Algorithm: TokenBucket, Limit: 5, Burst: 5, WindowMS: 1_000}})
	}
	return call
}

// A reply that is not one of the script's must become an error, never a verdict.
func TestDecodeRefusesOtherReplies(t *testing.T) {
	head := "\x01\x02\x03\x04\x05\x06\x01"
	one := "\x01" + strings.Repeat("\x07", counterReplyBytes-1)
	for name, reply := range map[string]string{
		"empty": "", "text": "OK", "head only": head, "cut": (head + one)[:headReplyBytes+counterReplyBytes-1],
		"one too many": head + one + one, "a byte more": head + one + "x",
		"allowed is 2":       head[:6] + "\x02" + one,
		"unknown flag":       head + "\x10" + one[1:],
		"admits and exceeds": head + "\x03" + one[1:],
	} {
		_, err := callOf(1).decode(reply)
		require.ErrorIs(t, err, errReply, name)
	}
	call := callOf(1)
	repaired, err := call.decode(head + "\x0c" + one[1:])
	require.NoError(t, err)
	require.EqualValues(t, 1, repaired)
	require.EqualValues(t, 0x060504030201, call.Outcome.NowMS)
	require.True(t, call.Outcome.Allowed)
	require.Equal(t, []Verdict{{
		Penalized: true, Remaining: 0x07070707070707, RetryAfterMS: 0x070707070707, ResetMS: 0x070707070707,
		NextMS: 0x070707070707, DelayMS: 0x0707070707,
	}}, call.Outcome.Verdicts)
	_, err = callOf(0).decode(head)
	require.NoError(t, err, "no counters: the time")
}

func FuzzDecode(f *testing.F) {
	f.Add("", uint8(1))
	f.Add("\x01\x02\x03\x04\x05\x06\x01"+strings.Repeat("\x01", counterReplyBytes), uint8(1))
	f.Fuzz(func(t *testing.T, reply string, counters uint8) {
		call := callOf(int(counters % 8))
		if _, err := call.decode(reply); err != nil {
			require.ErrorIs(t, err, errReply)
			return
		}
		require.Len(t, call.Outcome.Verdicts, len(call.Counters))
		for _, v := range call.Outcome.Verdicts {
			require.False(t, v.Allowed && v.CostExceeds)
			require.Equal(t, v.CostExceeds, v.RetryAfterMS == NeverMS)
			require.GreaterOrEqual(t, v.Remaining, int64(0))
		}
	})
}

// A script holds what its calls need and no more, and its text is the same in every process.
func TestScripts(t *testing.T) {
	var all scripts
	bucketsOnly := all.of(algorithmSet(0).with(TokenBucket).with(LeakyBucket))
	require.True(t, strings.HasPrefix(bucketsOnly.text, "#!lua\n"))
	require.Equal(t, 1, strings.Count(bucketsOnly.text, "local function bucket_read"))
	require.NotContains(t, bucketsOnly.text, "algorithms[1]")
	require.Same(t, bucketsOnly, all.of(algorithmSet(0).with(LeakyBucket).with(TokenBucket)))
	var other scripts
	require.Equal(t, bucketsOnly.sha, other.of(algorithmSet(0).with(TokenBucket).with(LeakyBucket)).sha)
	for _, a := range Algorithms {
		require.Contains(t, all.of(algorithmSet(0).with(a)).text, "algorithms[")
	}
}
