package redis

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/limit"
)

func callOf(counters int) *engine.Call {
	call := &engine.Call{Cost: 1}
	for range counters {
		call.Counters = append(call.Counters, engine.Counter{Numbers: limit.Numbers{Algorithm: limit.TokenBucket, Limit: 5, Burst: 5, WindowMS: 1_000}})
	}
	return call
}

// A reply that is not one of the script must result in an error, never in a verdict.
func TestDecodeRefusesOtherReplies(t *testing.T) {
	head := "\x01\x02\x03\x04\x05\x06\x01"
	one := "\x01" + strings.Repeat("\x07", counterReplyBytes-1)
	for name, reply := range map[string]string{
		"empty": "", "text": "OK", "head only": head, "cut": (head + one)[:headReplyBytes+counterReplyBytes-1],
		"one too many": head + one + one, "a byte more": head + one + "x",
		"allowed is 2":             head[:6] + "\x02" + one,
		"unknown flag":             head + "\x10" + one[1:],
		"allowed and cost exceeds": head + "\x03" + one[1:],
	} {
		_, err := decodeReply(callOf(1), reply)
		require.ErrorIs(t, err, errReply, name)
	}
	call := callOf(1)
	repaired, err := decodeReply(call, head+"\x0c"+one[1:])
	require.NoError(t, err)
	require.EqualValues(t, 1, repaired)
	require.EqualValues(t, 0x060504030201, call.Outcome.NowMS)
	require.True(t, call.Outcome.Allowed)
	require.Equal(t, []limit.Verdict{{
		Penalized: true, Remaining: 0x07070707070707, RetryAfterMS: 0x070707070707, ResetMS: 0x070707070707,
		NextMS: 0x070707070707, DelayMS: 0x0707070707,
	}}, call.Outcome.Verdicts)
	_, err = decodeReply(callOf(0), head)
	require.NoError(t, err, "no counters: the time")
}

func FuzzDecode(f *testing.F) {
	f.Add("", uint8(1))
	f.Add("\x01\x02\x03\x04\x05\x06\x01"+strings.Repeat("\x01", counterReplyBytes), uint8(1))
	f.Add("\x01\x02\x03\x04\x05\x06\x02", uint8(1)) // a calendar window has ended
	f.Fuzz(func(t *testing.T, reply string, counters uint8) {
		call := callOf(int(counters % 8))
		if _, err := decodeReply(call, reply); err != nil {
			require.True(t, errors.Is(err, errReply) || errors.Is(err, errStale), err)
			return
		}
		require.Len(t, call.Outcome.Verdicts, len(call.Counters))
		for _, v := range call.Outcome.Verdicts {
			require.False(t, v.Allowed && v.CostExceeds)
			require.Equal(t, v.CostExceeds, v.RetryAfterMS == limit.NeverMS)
			require.GreaterOrEqual(t, v.Remaining, int64(0))
		}
	})
}

// A script contains only what its calls need, and its text is the same in every process.
func TestScripts(t *testing.T) {
	var all scripts
	bucketsOnly := all.of(algorithmSet(0).with(limit.TokenBucket).with(limit.LeakyBucket))
	require.True(t, strings.HasPrefix(bucketsOnly.text, "#!lua\n"))
	require.Equal(t, 1, strings.Count(bucketsOnly.text, "local function bucket_read"))
	require.NotContains(t, bucketsOnly.text, "algorithms[1]")
	require.Same(t, bucketsOnly, all.of(algorithmSet(0).with(limit.LeakyBucket).with(limit.TokenBucket)))
	var other scripts
	require.Equal(t, bucketsOnly.sha, other.of(algorithmSet(0).with(limit.TokenBucket).with(limit.LeakyBucket)).sha)
	for _, a := range limit.Algorithms {
		text := all.of(algorithmSet(0).with(a)).text
		require.Contains(t, text, "algorithms[")
		require.NotRegexp(t, `(?m)^\s*--`, text, "Redis does not need comments")
	}
}

// Every file of a script says what comes in, what goes out, and has an example.
func TestScriptsExplainThemselves(t *testing.T) {
	files, err := luaFiles.ReadDir("lua")
	require.NoError(t, err)
	for _, file := range files {
		text, err := luaFiles.ReadFile("lua/" + file.Name())
		require.NoError(t, err)
		header := regexp.MustCompile(`\A(--.*\n)+`).FindString(string(text))
		for _, part := range []string{`(?m)^--\s+(KEYS|ARGV|In|read\()`, `(?m)^--\s+(reply|Out|out|when\()`, `(?m)^-- Example: `} {
			require.Regexp(t, part, header, file.Name())
		}
	}
}
