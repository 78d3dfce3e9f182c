package redis

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"strings"
	"sync/atomic"

	"weir/internal/limit"
)

// the name by which Redis knows a script

//go:embed lua/*.lua
var luaFiles embed.FS

// luaParts names the files, in order, that an algorithm adds to the script.
var luaParts = map[limit.Algorithm][]string{
	limit.SlidingWindowCounter: {"fixed_value", "counter_value", "group", "sliding_window_counter"},
	limit.SlidingWindowLog:     {"sliding_window_log"},
	limit.SlidingWindowBuckets: {"sliding_window_buckets"},
	limit.FixedWindow:          {"fixed_value", "counter_value", "group", "fixed_window"},
	limit.FixedWindowFirstHit:  {"fixed_value", "counter_value", "group", "fixed_window"},
	limit.TokenBucket:          {"bucket", "token_bucket"},
	limit.LeakyBucket:          {"bucket", "leaky_bucket"},
	limit.LeakyBucketQueue:     {"bucket", "leaky_bucket_queue"},
}

// script is the Lua text that decides calls of one set of algorithms, and no more than that:
// what a script defines, Redis defines anew on every run.
type script struct {
	text string
	sha  string
	// sent tells that it was once run by its text, so that by now the server should know it.
	sent atomic.Bool
}

// algorithmSet has bit a-1 for algorithm a.
type algorithmSet uint8

func (s algorithmSet) with(a limit.Algorithm) algorithmSet { return s | 1<<(a-1) }

// scripts holds the script of every set that was asked for.
type scripts [256]atomic.Pointer[script]

func (s *scripts) of(set algorithmSet) *script {
	if found := s[set].Load(); found != nil {
		return found
	}
	parts := []string{"prelude"}
	for _, a := range limit.Algorithms {
		if set&algorithmSet(0).with(a) != 0 {
			parts = append(parts, luaParts[a]...)
		}
	}
	s[set].CompareAndSwap(nil, newScript(append(parts, "evaluate_one")...))
	return s[set].Load()
}

// newScript puts a script together from files of lua/, each once.
func newScript(parts ...string) *script {
	var text strings.Builder
	text.WriteString("#!lua\n")
	have := map[string]bool{}
	for _, part := range parts {
		if have[part] {
			continue
		}
		have[part] = true
		lua, err := luaFiles.ReadFile("lua/" + part + ".lua")
		if err != nil {
			panic(err) // the file is not embedded: a mistake in the names
		}
		text.Write(lua)
	}
	sum := sha1.Sum([]byte(text.String()))
	return &script{text: text.String(), sha: hex.EncodeToString(sum[:])}
}
