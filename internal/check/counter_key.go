package check

import (
	"encoding/binary"
	"strings"
)

// keyPrefix begins every key that Weir keeps in Redis.
const keyPrefix = "w{"

// hashTag returns the part of a key that chooses its slot.
func hashTag(key string) string {
	if from := strings.IndexByte(key, '{'); from >= 0 {
		if length := strings.IndexByte(key[from+1:], '}'); length > 0 {
			return key[from+1 : from+1+length]
		}
	}
	return key
}

// idBytes is the length of the name in a key, and of a rule's ID.
const idBytes = 9

// keyName is the name of a key: 40 bits and 32 bits.
type keyName struct{ low, high uint64 }

func (n keyName) plus(o keyName) keyName { return keyName{low: n.low + o.low, high: n.high + o.high} }

func (n keyName) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(n.low)) //nolint:gosec // the low bytes are meant
	b = append(b, byte(n.low>>32))
	return binary.LittleEndian.AppendUint32(b, uint32(n.high)) //nolint:gosec // the low bytes are meant
}

// readName is the opposite of append.
func readName(s string) (n keyName) {
	for i := idBytes - 1; i >= 5; i-- {
		n.high = n.high<<8 | uint64(s[i])
	}
	for i := 4; i >= 0; i-- {
		n.low = n.low<<8 | uint64(s[i])
	}
	return n
}

// keyBeside returns the own key of the counter with an ID, from the key of its group.
func keyBeside(group, id string) string {
	at := len(group) - idBytes
	return string(readName(group[at:]).plus(readName(id)).append([]byte(group[:at])))
}
