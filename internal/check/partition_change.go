package check

import (
	"time"

	"weir/internal/limit"
)

// MaxPartitions is the maximum number of a tenant's partitions.
const MaxPartitions = 64

// PartitionsSettled returns when the last change of the number of partitions ends: when all rules
// of the data are decided at the new places alone. It is zero if the number has never changed.
//
// Example: the number changed at 12:00, and the longest window is one hour, of a fixed window. The
// change ends at 13:02.
func PartitionsSettled(data *PolicyData) time.Time {
	if data.PartitionsBefore == 0 {
		return time.Time{}
	}
	longest := int64(0)
	rules := make(map[string]number, len(data.Rules))
	for i := range data.Rules {
		r := number{numbers: data.Rules[i].Numbers()}
		longest, rules[data.Rules[i].Slug] = max(longest, r.numbers.LifeMS()), r
	}
	add := func(limits map[string]limit.Limit) {
		for rule, l := range limits {
			if r, known := rules[rule]; known {
				n := r.with(l, "")
				longest = max(longest, n.numbers.LifeMS())
			}
		}
	}
	for _, plan := range data.Plans {
		add(plan.Limits)
		for _, older := range plan.Older {
			add(older.Limits)
		}
	}
	return data.PartitionsChanged.Add(time.Duration(learnMS+longest+skewMS) * time.Millisecond)
}
