package check_test

import (
	"testing"

	"weir/internal/check"
	"weir/internal/check/checktest"
)

func TestMemoryEngine(t *testing.T) {
	checktest.Suite(t, check.NewMemoryEngine(check.MemoryOptions{}))
}
