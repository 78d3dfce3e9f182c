package check

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/engine"
)

var placesTenant = uuid.MustParse("018f0000-0000-7000-8000-00000000000a")

// The slot of a tag is that of Redis, whose specification names this one.
func TestSlotOf(t *testing.T) {
	require.EqualValues(t, 12739, slotOf("123456789"))
}

// Every slot has tags, each of them two bytes that end no tag.
func TestTagsOfSlots(t *testing.T) {
	for slot, tags := range tagsOfSlots() {
		require.GreaterOrEqual(t, len(tags), 2, "slot %d", slot)
		for _, tag := range tags {
			key := engine.KeyPrefix + tag + "}name"
			require.Equal(t, tag, engine.HashTag(key))
		}
	}
}

// A tenant with one partition has the keys that it had before there were partitions.
func TestOnePartitionIsTheTagOfTheTenant(t *testing.T) {
	keys := NewKeys([16]byte{1})
	for _, partitions := range []int{0, 1} {
		at := keys.places(placesTenant, partitions)
		require.Equal(t, []string{keys.tenantPrefix(placesTenant)}, at.prefixes)
		require.Equal(t, at.prefixes[0], at.ofSubject("ada"))
	}
	require.Equal(t, keys.tenantPrefix(placesTenant), keys.places(placesTenant, 64).prefixes[0])
}

// Servers that divide the slots evenly get about equal numbers of a tenant's tags.
func TestPartitionsAreSpreadOverServers(t *testing.T) {
	for tenant := range 20 {
		for partitions := 2; partitions <= 64; partitions++ {
			at := NewKeys([16]byte{byte(tenant)}).places(placesTenant, partitions)
			for _, servers := range []int{2, 3, 6} {
				count := make([]int, servers)
				for _, prefix := range at.prefixes {
					count[int(slotOf(engine.HashTag(prefix)))*servers/slots]++
				}
				for _, n := range count {
					require.InDelta(t, float64(partitions)/float64(servers), n, 2, "%d partitions on %d servers: %v", partitions, servers, count)
				}
			}
		}
	}
}

// Subjects are spread evenly, and with one more partition only those change their place that go to
// the new one.
func TestSubjectsKeepTheirPartition(t *testing.T) {
	keys := NewKeys([16]byte{2})
	const subjects = 20_000
	for _, partitions := range []int{2, 3, 16, 63} {
		before, after := keys.places(placesTenant, partitions), keys.places(placesTenant, partitions+1)
		require.Equal(t, before.prefixes, after.prefixes[:partitions])
		count, moved := map[string]int{}, 0
		for n := range subjects {
			from, to := before.ofSubject(strconv.Itoa(n)), after.ofSubject(strconv.Itoa(n))
			count[from]++
			if from != to {
				require.Equal(t, after.prefixes[partitions], to)
				moved++
			}
		}
		require.Len(t, count, partitions)
		for _, n := range count {
			require.InEpsilon(t, subjects/partitions, n, 0.25)
		}
		require.InEpsilon(t, subjects/(partitions+1), moved, 0.25)
	}
}

// Rules that count by the subject share its tag. Others have the tag of their own values.
func TestPlaceOfARule(t *testing.T) {
	rules := func(by ...[]string) (data PolicyData) {
		data.Partitions = 16
		for i, values := range by {
			data.Rules = append(data.Rules, ruleFor(fmt.Sprintf("r%d", i), "*", 10, values...))
		}
		return data
	}
	r := newRig(t, rules([]string{"subject"}, []string{"subject", "resource"}, []string{"attributes.region", "subject"}, []string{"resource"}, nil))
	home := r.policy.places.prefixes[0]
	byResource := map[string]bool{}
	several := 0
	for n := range 200 {
		req := Request{Subject: strconv.Itoa(n), Resource: strconv.Itoa(n), Cost: 1, Attributes: []Attribute{{Name: "region", Value: strconv.Itoa(n)}}}
		var e evaluation
		require.True(t, e.resolve(r.checker.keys, r.policy, &req, r.checker.now(), r.checker.nowMS()))
		var tags []string
		for i := range e.call.Counters {
			tags = append(tags, e.call.Counters[i].Key[:len(home)])
		}
		at := r.policy.places.ofSubject(req.Subject)
		require.Equal(t, []string{at, at, at, tags[3], home}, tags)
		byResource[tags[3]] = true
		require.Equal(t, e.call.SeveralTags(), e.call.Spread)
		if e.call.Spread {
			several++
		}
	}
	require.Len(t, byResource, 16)
	require.NotZero(t, several)
}
