package dashboard

import (
	"strings"

	"weir/internal/tenants"
)

// trend is the course of the checks in one row of a list, with the denials of the previous period.
type trend struct {
	Allowed, Denied []int64 // checks, by grain
	Before          int64   // denied in the previous period
	Compared        bool    // whether the previous period is known
}

// trendColumns is the largest number of columns that a row has space for.
const trendColumns = 30

// newTrend adds up the checks of a period by column. Items before it count as the previous period.
func newTrend(items []tenants.UsageItem, s stretch) trend {
	grains := s.count()
	each := (grains + trendColumns - 1) / trendColumns
	t := trend{Allowed: make([]int64, (grains+each-1)/each), Denied: make([]int64, (grains+each-1)/each), Compared: s.Before}
	for i := range items {
		item := &items[i]
		if item.Start.Before(s.From) {
			t.Before += item.Denied
		} else if k := int(item.Start.Sub(s.From)/s.Grain.Duration()) / each; k < len(t.Denied) {
			t.Allowed[k] += item.Allowed
			t.Denied[k] += item.Denied
		}
	}
	return t
}

// AllowedPath and DeniedPath return the columns, denials on top.
func (t *trend) AllowedPath() string { return t.path(make([]int64, len(t.Allowed)), t.Allowed) }

// DeniedPath returns the denied parts of the columns.
func (t *trend) DeniedPath() string { return t.path(t.Allowed, t.Denied) }

// path draws the columns of counts, each above what is below it. A count above 0 is visible.
func (t *trend) path(below, counts []int64) string {
	most := int64(1)
	for i := range t.Denied {
		most = max(most, t.Allowed[i]+t.Denied[i])
	}
	wide := float64(trendWidth) / float64(max(len(counts), 1))
	var b strings.Builder
	for i, n := range counts {
		if n == 0 {
			continue
		}
		height := max(1.5, float64(n)*trendHeight/float64(most))
		bottom := max(height, trendHeight-float64(below[i])*trendHeight/float64(most))
		b.WriteString("M" + number(float64(i)*wide+0.4) + " " + number(bottom) + "v-" + number(height) + "h" + number(wide-0.8) + "v" + number(height) + "z")
	}
	return b.String()
}

// Sum returns the denials of the period.
func (t *trend) Sum() (sum int64) {
	for _, n := range t.Denied {
		sum += n
	}
	return sum
}

// Change compares the denials with the previous period, as in "+12 %"; "" if there is nothing to
// compare.
func (t *trend) Change() string {
	if !t.Compared {
		return ""
	}
	return shortChange(t.Sum(), t.Before)
}

// Steep reports whether the denials doubled at least, and are more than a few.
func (t *trend) Steep() bool { return t.Compared && t.Sum() >= 10 && t.Sum() >= 2*t.Before }

// shortChange is change for the column of a table.
func shortChange(now, before int64) string {
	switch {
	case now == 0 && before == 0:
		return ""
	case now == before:
		return "0\u202f%"
	case before == 0:
		return "new"
	case now == 0:
		return "\u2212100\u202f%"
	}
	return change(now, before)
}
