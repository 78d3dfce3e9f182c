package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// byteSize is a number of bytes, written as 512MiB.
type byteSize int64

var byteUnits = []struct {
	name string
	size int64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"B", 1}}

// UnmarshalText parses an integer with one of the units. Without a unit, it is in bytes.
func (s *byteSize) UnmarshalText(text []byte) error {
	number, size := string(text), int64(1)
	for _, unit := range byteUnits {
		if rest, found := strings.CutSuffix(number, unit.name); found {
			number, size = rest, unit.size
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > (1<<50)/size {
		return errors.New("must be a size such as 512MiB, in B, KiB, MiB, GiB or TiB")
	}
	*s = byteSize(n * size)
	return nil
}

// String uses the largest unit that divides the size.
func (s byteSize) String() string {
	for i := len(byteUnits) - 2; i >= 0; i-- {
		if unit := byteUnits[i]; s != 0 && int64(s)%unit.size == 0 {
			return fmt.Sprintf("%d%s", int64(s)/unit.size, unit.name)
		}
	}
	return strconv.FormatInt(int64(s), 10)
}
