package engine

import (
	"encoding/binary"
	"strings"
)

// KeyPrefix is the beginning of every key that Weir stores in Redis.
const KeyPrefix = "w{"

// HashTag returns the part of a key that determines its slot.
func HashTag(key string) string {
	if from := strings.IndexByte(key, '{'); from >= 0 {
		if length := strings.IndexByte(key[from+1:], '}'); length > 0 {
			return key[from+1 : from+1+length]
		}
	}
	return key
}

// Retag returns key with the hash tag of another key.
func Retag(key, other string) string {
	return KeyPrefix + HashTag(other) + key[len(KeyPrefix)+len(HashTag(key)):]
}

// idBytes is the length of the name in a key, and of a rule's ID.
const idBytes = 9

// keyName is the name of a key: 40 bits and 32 bits.
type KeyName struct{ Low, High uint64 }

func (n KeyName) Plus(o KeyName) KeyName { return KeyName{Low: n.Low + o.Low, High: n.High + o.High} }

// Minus is the inverse of Plus.
func (n KeyName) Minus(o KeyName) KeyName { return KeyName{Low: n.Low - o.Low, High: n.High - o.High} }

func (n KeyName) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(n.Low)) // the low bytes are meant
	b = append(b, byte(n.Low>>32))
	return binary.LittleEndian.AppendUint32(b, uint32(n.High)) // the low bytes are meant
}

// ReadName is the inverse of append.
func ReadName(s string) (n KeyName) {
	for i := idBytes - 1; i >= 5; i-- {
		n.High = n.High<<8 | uint64(s[i])
	}
	for i := 4; i >= 0; i-- {
		n.Low = n.Low<<8 | uint64(s[i])
	}
	return n
}

// OtherKey returns the other key under which the counter may be stored: its own key if it is
// grouped, else the key of its group. It returns "" for a counter that is never in a group.
func (c *Counter) OtherKey() string {
	if c.Grouped {
		return c.OwnKey()
	}
	at := len(c.Key) - idBytes
	if c.ID == "" || at < 0 {
		return ""
	}
	return string(ReadName(c.Key[at:]).Minus(ReadName(c.ID)).Append([]byte(c.Key[:at])))
}

// keyBeside returns the own key of a counter, from the key of its group and the counter's ID.
// The twin is key_beside in group.lua.
func keyBeside(group, id string) string {
	at := len(group) - idBytes
	return string(ReadName(group[at:]).Plus(ReadName(id)).Append([]byte(group[:at])))
}
