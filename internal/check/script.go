package check

import (
	"crypto/sha1" // the name by which Redis knows a script
	"embed"
	"encoding/hex"
	"strings"
	"sync/atomic"
)

//go:embed lua/*.lua
var luaFiles embed.FS

// luaParts names the files, in order, that an algorithm adds to the script.
var luaParts = map[Algorithm][]string{
	SlidingWindowCounter: {"sliding_window_counter"},
	SlidingWindowLog:     {"sliding_window_log"},
	SlidingWindowBuckets: {"sliding_window_buckets"},
	FixedWindow:          {"fixed_window"},
	FixedWindowFirstHit:  {"fixed_window"},
	TokenBucket:          {"bucket", "token_bucket"},
	LeakyBucket:          {"bucket", "leaky_bucket"},
	LeakyBucketQueue:     {"bucket", "leaky_bucket_queue"},
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

func (s algorithmSet) with(a Algorithm) algorithmSet { return s | 1<<(a-1) }

// scripts holds the script of every set that was asked for.
type scripts [256]atomic.Pointer[script]

func (s *scripts) of(set algorithmSet) *script {
	if found := s[set].Load(); found != nil {
		return found
	}
	s[set].CompareAndSwap(nil, newScript(set))
	return s[set].Load()
}

func newScript(set algorithmSet) *script {
	var text strings.Builder
	text.WriteString("#!lua\n")
	have := map[string]bool{}
	add := func(part string) {
		if have[part] {
			return
		}
		have[part] = true
		lua, err := luaFiles.ReadFile("lua/" + part + ".lua")
		if err != nil {
			panic(err) // the file is not embedded: a mistake in luaParts
		}
		text.Write(lua)
	}
	add("prelude")
	for _, a := range Algorithms {
		if set&algorithmSet(0).with(a) != 0 {
			for _, part := range luaParts[a] {
				add(part)
			}
		}
	}
	add("main")
	sum := sha1.Sum([]byte(text.String()))
	return &script{text: text.String(), sha: hex.EncodeToString(sum[:])}
}
