package subscription

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// Description is the metadata of a customer, as one event or answer of the provider has it.
type Description struct {
	Event string `json:"event"`
	Rank  int    `json:"rank,omitempty"` // orders those of one second: the highest rank is the newest
	Was   string `json:"was,omitempty"`  // the key of the previous metadata; "" if it is unknown
	Key   string `json:"key,omitempty"`  // the key of the metadata; Facts sets it
	// Metadata is not stored if it is that of the facts.
	Metadata map[string]string `json:"metadata,omitempty"`
}

// maxSecond bounds the stored descriptions of one second. Those with the greatest ids are kept, so
// that even those that are left out do not depend on the order.
const maxSecond = 10

// Describe adds a description and reports whether the facts have its metadata, or have changed.
func (f *Facts) Describe(at int64, d Description) (newest bool) {
	d.Key = metadataKey(d.Metadata)
	before := metadataKey(f.Metadata)
	switch {
	case at < f.MetadataAt:
		return false
	case at > f.MetadataAt:
		f.Second = nil
	case len(f.Second) > 0 && d.Rank < f.Second[0].Rank:
		return false
	case len(f.Second) > 0 && d.Rank > f.Second[0].Rank:
		f.Second = nil
	}
	for i := range f.Second {
		if f.Second[i].Key == before {
			f.Second[i].Metadata = f.Metadata
		}
	}
	f.add(d)
	last := f.last()
	f.Metadata, f.MetadataAt = last.Metadata, at
	for i := range f.Second {
		if f.Second[i].Key == last.Key {
			f.Second[i].Metadata = nil
		}
	}
	return d.Key == last.Key || before != last.Key
}

// add stores a description in the order of the ids. Of several that were fetched, only the newest
// counts: there is no limit to their number.
func (f *Facts) add(d Description) {
	if n := len(f.Second); n > 0 && fetched(d.Event) && fetched(f.Second[n-1].Event) {
		if d.Event >= f.Second[n-1].Event {
			f.Second[n-1] = d
		}
		return
	}
	i, found := slices.BinarySearchFunc(f.Second, d.Event, func(s Description, id string) int { return strings.Compare(s.Event, id) })
	if found {
		f.Second[i] = d
		return
	}
	f.Second = slices.Insert(f.Second, i, d)
	if len(f.Second) > maxSecond {
		f.Second = slices.Delete(f.Second, 0, 1)
	}
}

func fetched(event string) bool { return strings.HasPrefix(event, FetchedEvent) }

// last returns the newest description of the second. A comparison of two is not enough: the first
// and the last of three changes have nothing in common. The changes are a path through the values
// of the metadata, so more of them lead to its end than from it. The greatest id decides if there
// is no such end, as after a change and its reversal, or several, as while an event is missing.
func (f *Facts) last() Description {
	surplus, left := map[string]int{}, map[string]bool{}
	for _, d := range f.Second {
		if d.Was != "" && d.Was != d.Key {
			surplus[d.Key]++
			surplus[d.Was]--
			left[d.Was] = true
		}
	}
	for _, d := range slices.Backward(f.Second) {
		if surplus[d.Key] > 0 || d.Was == "" && !left[d.Key] {
			return d
		}
	}
	return f.Second[len(f.Second)-1]
}

// metadataKey identifies metadata in Was of a later description.
func metadataKey(metadata map[string]string) string {
	if len(metadata) == 0 {
		return "{}"
	}
	text, _ := json.Marshal(metadata) // sorted by name; texts have no errors
	return shortKey(string(text))
}

// previousMetadata returns the key of the metadata before an event, or "" if it does not say that.
// The provider sends only the previous attributes that changed, and null for one that was missing.
func previousMetadata(metadata map[string]string, previous map[string]any) string {
	if previous == nil {
		return ""
	}
	before := maps.Clone(metadata)
	if before == nil {
		before = map[string]string{}
	}
	if changed, has := previous["metadata"]; has {
		values, ok := changed.(map[string]any)
		if !ok {
			return ""
		}
		for key, value := range values {
			if text, ok := value.(string); ok {
				before[key] = text
			} else {
				delete(before, key)
			}
		}
	}
	return metadataKey(shortMetadata(before))
}
