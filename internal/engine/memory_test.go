package engine_test

import (
	"testing"

	"weir/internal/engine"
	"weir/internal/engine/enginetest"
)

func TestMemoryEngine(t *testing.T) {
	enginetest.Suite(t, engine.NewMemory(engine.MemoryOptions{}))
}
