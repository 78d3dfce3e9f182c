package dashboard

import (
	"fmt"
	"strings"

	"weir/internal/limit"
)

// ruleSentence describes a rule in plain words.
func ruleSentence(r *limit.Rule) string {
	s := countedBy(r.By) + " can use " + amount(r) + " " + onResources(r.Resource) + "."
	switch r.Mode {
	case limit.Enforce:
		if r.Overage == limit.OverageAllow {
			s += " Requests over the limit are allowed, and the excess is counted."
			break
		}
		s += " Requests over the limit are denied"
		if r.Penalty.MS > 0 {
			s += ", and each denial blocks for " + exactly(r.Penalty.MS, true)
		}
		s += "."
	case limit.Shadow:
		s += " Requests over the limit are only reported, because the rule is in shadow."
	case limit.Off:
		s += " The rule is off: it neither counts nor denies."
	}
	if r.WarnAt != 0 && r.Mode != limit.Off {
		s += " Checks beyond " + r.WarnAt.Percent() + " of the limit carry a warning."
	}
	return s + missingSentence(r)
}

// missingSentence says that the rule denies checks without an attribute. It begins with a space, or
// is "".
func missingSentence(r *limit.Rule) string {
	if r.OnMissingAttribute != limit.DenyCheck || r.Mode == limit.Off {
		return ""
	}
	names := r.Attributes()
	if names == nil {
		return ""
	}
	if r.Mode == limit.Shadow {
		return " A check without " + strings.Join(names, " or ") + " is reported, too."
	}
	return " A check without " + strings.Join(names, " or ") + " is denied."
}

// outageSentence describes what the rule does if Redis is unavailable.
func outageSentence(o limit.OnUnavailable) string {
	switch o {
	case limit.Allow:
		return "If Redis is unavailable, the rule allows all checks."
	case limit.Deny:
		return "If Redis is unavailable, the rule denies all checks."
	case limit.Local:
		return "If Redis is unavailable, each instance counts its share of the limit."
	}
	return ""
}

// leaseSentences describe for a leased rule, with its own limits, how early it may deny, and how
// many units a crash can strand, and for how long, and how long a client may hold units.
func leaseSentences(r *limit.Rule, instances int) (out []string) {
	if r.Consistency != limit.Leased {
		return nil
	}
	numbers := r.Numbers()
	bounds, leased := numbers.LeaseBounds()
	if !leased {
		return nil // there is a warning for this
	}
	units := plural(bounds.Units, "unit", "units")
	ahead := "An instance prefetches units of a busy counter: the demand of 50 ms, at most a quarter of the remaining units (" +
		units + " of the rule’s limit), for at most " + exactly(bounds.HoldMS, true) + ". The limit is never exceeded."
	early := "Meanwhile, another instance may deny up to " + units + " early"
	switch {
	case instances > 2:
		early += " for each of the " + itoa(int64(instances)-1) + " other instances"
	case instances < 2:
		early += "; with one instance, as now, it denies none early"
	}
	if bounds.Refill > 0 {
		early += ". Up to " + plural(bounds.Refill, "unit does", "units do") + " not refill meanwhile"
	}
	stranded := "If an instance crashes, its prefetched units count as used "
	switch r.Algorithm {
	case limit.TokenBucket, limit.LeakyBucket:
		stranded += "until they refill"
	case limit.SlidingWindowCounter:
		stranded += "with decreasing weight"
	default:
		stranded += "until their window ends"
	}
	clients := "A client that leases units may hold them for at most " + exactly(r.ClientLease().Milliseconds(), true) +
		". Changes take effect for it when its lease ends."
	return []string{ahead, early + ".", stranded + ", for at most " + exactly(bounds.StrandedMS, true) + ".", clients}
}

func countedBy(by []string) string {
	names := make([]string, len(by))
	for i, v := range by {
		names[i], _ = limit.AttributeOf(v)
	}
	switch len(names) {
	case 0:
		return "All subjects together"
	case 1:
		return "Each " + names[0]
	}
	return "Each combination of " + strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}

func onResources(pattern string) string {
	prefix, isPrefix := strings.CutSuffix(pattern, "*")
	switch {
	case pattern == "*":
		return "on all resources"
	case isPrefix:
		return "on resources that start with “" + prefix + "”"
	}
	return "on “" + pattern + "”"
}

func amount(r *limit.Rule) string {
	lim, window := plural(r.Limit, "unit", "units"), exactly(r.Window.MS, false)
	burst := r.Numbers().Burst
	switch r.Algorithm {
	case limit.SlidingWindowCounter, limit.SlidingWindowLog:
		return lim + " in any " + window
	case limit.SlidingWindowBuckets:
		return lim + " in any " + window + ", in steps of " + exactly(r.Precision.MS, true) + ","
	case limit.FixedWindow:
		return lim + " each " + fixedWindow(r) + ","
	case limit.FixedWindowFirstHit:
		return fmt.Sprintf("%s in the %s that starts with the first use", lim, window)
	case limit.TokenBucket:
		return fmt.Sprintf("%s at once, refilled at %s,", plural(burst, "unit", "units"), rate(r.Limit, window))
	case limit.LeakyBucket:
		return fmt.Sprintf("%s in a bucket that drains at %s,", plural(burst, "unit", "units"), rate(r.Limit, window))
	case limit.LeakyBucketQueue:
		return fmt.Sprintf("%s, released evenly, with a queue of up to %s,", rate(r.Limit, window), plural(burst, "unit", "units"))
	}
	return lim
}

func rate(lim int64, window string) string { return grouped(lim) + " per " + window }

func fixedWindow(r *limit.Rule) string {
	unit, zone := r.Window.Calendar, " UTC"
	if r.ZoneName() != "UTC" {
		zone = " in " + r.ZoneName()
	}
	switch {
	case unit == limit.NoCalendar:
		return exactly(r.Window.MS, false) + " of the clock"
	case r.Anchor == limit.AnchorSubject && unit == limit.CalendarDay:
		return "day, from the time of each subject’s cycle anchor," + strings.Replace(zone, " UTC", " in UTC", 1)
	case r.Anchor == limit.AnchorSubject:
		return unit.String() + ", from each subject’s billing day," + strings.Replace(zone, " UTC", " in UTC", 1)
	}
	from := map[limit.Calendar]string{
		limit.CalendarDay: "midnight", limit.CalendarWeek: "Monday 00:00", limit.CalendarMonth: "the 1st 00:00", limit.CalendarYear: "1 January 00:00",
	}
	return unit.String() + ", from " + from[unit] + zone
}

// limitText formats a limit for a table: "100 per minute", with the capacity of a bucket.
func limitText(r *limit.Rule, l limit.Limit) string {
	if l.Unlimited {
		return "unlimited" + meteringText(l.Metering)
	}
	text := rate(l.Limit, windowName(r.Window))
	if burst := l.Burst; r.Algorithm.Bucket() && burst != 0 && burst != l.Limit {
		if r.Algorithm == limit.LeakyBucketQueue {
			text += ", queue " + grouped(burst)
		} else {
			text += ", burst " + grouped(burst)
		}
	}
	if l.WarnAt != 0 {
		text += ", warning at " + strings.Replace(l.WarnAt.Percent(), " ", "\u202f", 1) // no break before the sign
	}
	switch {
	case l.Overage == limit.OverageAllow:
		text += ", overage allowed"
	case l.Overage == limit.OverageDeny && r.Overage == limit.OverageAllow:
		text += ", overage denied"
	}
	return text + meteringText(l.Metering)
}

// meteringText is the part of limitText about what a plan's limit invoices.
func meteringText(m limit.PlanMetering) string {
	switch m {
	case limit.PlanMeterNone:
		return ", not metered"
	case limit.PlanMeterUnits:
		return ", all units invoiced"
	case limit.PlanMeterOverage:
		return ", overage invoiced"
	}
	return ""
}

func windowName(w limit.Window) string {
	if w.Calendar != limit.NoCalendar {
		return w.Calendar.String()
	}
	return exactly(w.MS, false)
}

// originText describes the source of a limit.
func originText(source string, plans planNames) string {
	if plan, ok := strings.CutPrefix(source, "plan:"); ok {
		return "from plan " + plans.Of(plan)
	}
	if source == "override" {
		return "from an override"
	}
	return "from the rule"
}
