package check_test

import (
	"testing"

	"weir/internal/check"
	"weir/internal/check/checktest"
)

func TestMemoryEngineVectors(t *testing.T) {
	checktest.Vectors(t, check.NewMemoryEngine(check.MemoryOptions{}))
}
