package limit

import "slices"

// Fields are the settings of a rule, in the order in which the API, documents and pages show them.
// A field is defined only here: its names, its values, their range, and the effect of a change. The
// API, the configuration document, the audit trail and the dashboard iterate over this table.
//
// To add a field, see "Add a field to a rule" in docs/architecture.md.
var Fields = []Field{
	{
		Name: "slug", Label: "Slug", Fixed: true,
		Hint:   "Cannot change later.",
		Sent:   "1 to 63 of a-z, 0-9 and -; cannot be changed later",
		Shown:  "Cannot be changed",
		Schema: map[string]any{"minLength": 1, "maxLength": MaxSlugBytes, "pattern": "^[a-z0-9-]+$"},
		value:  text(func(r *Rule) *string { return &r.Slug }),
		check:  (*Rule).checkSlug,
	},
	{
		Name: "name", Label: "Name",
		Sent:    "Up to 200 characters; default: the slug",
		Schema:  map[string]any{"maxLength": maxNameLength},
		value:   text(func(r *Rule) *string { return &r.Name }),
		initial: func(r *Rule) any { return r.Slug },
		check:   func(r *Rule, errs *FieldErrors) { ValidateText(errs, "name", r.Name, maxNameLength) },
	},
	{
		Name: "description", Label: "Description",
		Sent:   "Up to 2000 characters",
		Schema: map[string]any{"maxLength": maxDescriptionLength},
		value:  text(func(r *Rule) *string { return &r.Description }),
		check: func(r *Rule, errs *FieldErrors) {
			ValidateText(errs, "description", r.Description, maxDescriptionLength)
		},
	},
	{
		Name: "resource", Label: "Resource",
		Hint:    "A name, orders:* or *.",
		Sent:    "Resource pattern: exact (orders:create), prefix (orders:*) or all (*); default *",
		Shown:   "Resource pattern: exact (orders:create), prefix (orders:*) or all (*)",
		Schema:  map[string]any{"minLength": 1, "maxLength": MaxNameBytes, "pattern": `^[^*]*\*?$`},
		value:   text(func(r *Rule) *string { return &r.Resource }),
		initial: func(*Rule) any { return "*" },
		check:   (*Rule).checkResource,
	},
	{
		Name: "algorithm", Label: "Algorithm", Resets: true,
		Sent:    "Default sliding_window_counter",
		Choices: choices(algorithmNames),
		value:   choice(func(r *Rule) *Algorithm { return &r.Algorithm }, algorithmNames),
		initial: func(*Rule) any { return SlidingWindowCounter.String() },
	},
	{
		Name: "limit", Label: "Limit", Required: true,
		Sent:   "Units of cost per window: 1 to 10^9; in the fixed windows to 10^15; in sliding_window_log to 10 000",
		Shown:  "Units of cost per window",
		Schema: map[string]any{"minimum": 1, "maximum": MaxFixedLimit},
		value:  number(func(r *Rule) *int64 { return &r.Limit }),
		check:  func(r *Rule, errs *FieldErrors) { r.checkLimit(errs, r.Limit) },
	},
	{
		Name: "window", Label: "Window", Required: true, Resets: true,
		Sent:  "A duration from 1s to 366d, or for fixed_window also day, week, month or year",
		Shown: "In the notation of the request: 60s stays 60s",
		value: windowValue(),
		check: (*Rule).checkWindow,
	},
	{
		Name: "zone", Label: "Time zone",
		Hint:    "An IANA time zone, such as Europe/Berlin.",
		Sent:    "IANA time zone of a calendar window, such as Europe/Berlin; only with a window of day, week, month or year; default UTC",
		Shown:   "IANA time zone of a calendar window; null for other windows",
		value:   zoneValue(),
		applies: (*Rule).byCalendar,
		check:   (*Rule).checkZone,
	},
	{
		Name: "anchor", Label: "Anchor",
		Sent: "Where calendar windows begin: calendar: at midnight, on Monday, on the 1st or on 1 January; subject: at the cycle_anchor of " +
			"each subject. Only with a window of day, week, month or year; default calendar",
		Shown: "Where calendar windows begin; null for other windows",
		Choices: []Choice{
			{"calendar", "Calendar", "Windows begin at midnight, on Monday, on the 1st or on 1 January."},
			{"subject", "Subject", "Windows begin at the cycle anchor of each subject, such as its billing day. Subjects without one follow the calendar."},
		},
		value:   anchorValue(),
		applies: (*Rule).byCalendar,
		check:   (*Rule).checkAnchor,
	},
	{
		Name: "burst", Label: "Burst",
		Hint:    "Optional. Units that can be used at once. Defaults to the limit.",
		Sent:    "Capacity of token_bucket, leaky_bucket and leaky_bucket_queue, 1 to 10^9; default: the limit",
		Shown:   "Capacity of a bucket; null: the same as limit",
		Schema:  map[string]any{"minimum": 1, "maximum": MaxLimit},
		value:   optionalNumber(func(r *Rule) *int64 { return &r.Burst }, MaxLimit),
		applies: func(r *Rule) bool { return r.Algorithm.Bucket() },
		check:   func(r *Rule, errs *FieldErrors) { r.checkBurst(errs, r.Limit, r.Burst) },
	},
	{
		Name: "warn_at", Label: "Warn at",
		Hint:   "Optional. A share of the limit, such as 0.8.",
		Sent:   "A check that leaves more than this share of the limit used carries a warning: 0 to 1, with at most 4 decimal places; default: no warnings",
		Shown:  "The share of the limit beyond which checks carry a warning; null: no warnings",
		Schema: map[string]any{"minimum": 0, "maximum": 1},
		value:  share(func(r *Rule) *Portion { return &r.WarnAt }),
	},
	{
		Name: "overage", Label: "Overage",
		Sent: "deny: checks beyond the limit are denied. allow: they are allowed, and the excess is counted; " +
			"only with fixed and sliding windows except sliding_window_log, without a penalty, and not leased. Default deny",
		Shown: "Whether checks beyond the limit are denied; null for algorithms that cannot count the excess",
		Choices: []Choice{
			{"deny", "Deny", "Checks beyond the limit are denied."},
			{"allow", "Allow", "Checks beyond the limit are allowed. The excess is counted and reported by itself, so that it can be invoiced."},
		},
		value:   overageValue(),
		applies: (*Rule).countsExcess,
		check:   func(r *Rule, errs *FieldErrors) { r.checkOverage(errs, r.Overage) },
	},
	{
		Name: "precision", Label: "Precision", Resets: true,
		Sent:    "Length of a part of the window; required for sliding_window_buckets, invalid for others; divides the window into at most 120 parts",
		Shown:   "Length of a part of sliding_window_buckets; null for other algorithms",
		value:   duration(func(r *Rule) *Duration { return &r.Precision }),
		applies: func(r *Rule) bool { return r.Algorithm == SlidingWindowBuckets },
		check:   (*Rule).checkPrecision,
	},
	{
		Name: "by", Label: "Counted per", Resets: true,
		Sent:    "Any of subject, resource and attributes.NAME; default [subject]; empty: one counter for the tenant",
		Shown:   "The values that identify a counter; empty: one counter for the tenant",
		Schema:  map[string]any{"maxItems": MaxBy},
		value:   list(func(r *Rule) *[]string { return &r.By }),
		initial: func(*Rule) any { return []string{"subject"} },
		check:   (*Rule).checkBy,
	},
	{
		Name: "mode", Label: "Mode",
		Sent: "Default enforce; shadow is evaluated and reported, and never denies",
		Choices: []Choice{
			{"enforce", "Enforce", "Counts and denies."},
			{"shadow", "Shadow", "Counts and reports. Denies nothing."},
			{"off", "Off", "Neither counts nor denies."},
		},
		value: choice(func(r *Rule) *Mode { return &r.Mode }, modeNames),
	},
	{
		Name: "on_unavailable", Label: "If Redis is unavailable",
		Sent: "What to do if Redis is unavailable; default local",
		Choices: []Choice{
			{"local", "Count per instance, with a share of the limit", ""},
			{"allow", "Allow all checks", ""},
			{"deny", "Deny all checks", ""},
		},
		value: choice(func(r *Rule) *OnUnavailable { return &r.OnUnavailable }, onUnavailableNames),
	},
	{
		Name: "on_missing_attribute", Label: "If an attribute is missing",
		Sent: "What to do with a check without an attribute of by. skip: the rule is not evaluated. " +
			"deny: the check is denied, with ATTRIBUTE_MISSING. Default skip",
		Shown: "What happens to a check without an attribute of by; null if by has none",
		Choices: []Choice{
			{"skip", "Skip the rule", "A check without the attribute is not limited by this rule."},
			{"deny", "Deny the check", "A check without the attribute is denied, so that no caller can avoid the rule by leaving it out."},
		},
		value:   missingAttributeValue(),
		applies: (*Rule).countsAttributes,
		check:   (*Rule).checkMissingAttribute,
	},
	{
		Name: "penalty", Label: "Penalty",
		Hint:  "Optional. After a denial, the rule denies all checks for this long.",
		Sent:  "How long the rule continues to deny after a denial, up to 30d; default none",
		Shown: "How long the rule continues to deny after a denial; null: no penalty",
		value: duration(func(r *Rule) *Duration { return &r.Penalty }),
		check: (*Rule).checkPenalty,
	},
	{
		Name: "consistency", Label: "Consistency",
		Sent: "strict: each check goes to Redis. leased: instances prefetch units of busy counters and grant them from memory; " +
			"not with sliding_window_log, leaky_bucket_queue or a penalty. Default strict",
		Choices: []Choice{
			{"strict", "Strict", "Every check makes one round trip to Redis. No check is denied early."},
			{"leased", "Leased", "Each instance prefetches units of busy counters and grants them from memory. " +
				"The limit is never exceeded; near it, some checks may be denied early."},
		},
		value: choice(func(r *Rule) *Consistency { return &r.Consistency }, consistencyNames),
		check: (*Rule).checkConsistency,
	},
	{
		Name: "lease", Label: "Client lease",
		Hint: "Optional. How long a client of a leased rule may hold units: 50 ms to 10 s. Default 250 ms.",
		Sent: "How long a client may hold units of a leased rule and grant them without a request, 50ms to 10s; " +
			"only with consistency leased; default 250ms",
		Shown:   "How long a client may hold units; null for strict rules",
		value:   leaseValue(),
		applies: func(r *Rule) bool { return r.Consistency == Leased },
		check:   (*Rule).checkLease,
	},
	{
		Name: "metering", Label: "Metering",
		Hint: "Metered usage is exact, by subject and hour, for invoices.",
		Sent: "Whether the units of allowed checks are recorded exactly, by subject and hour, and which of them are invoiced: units: all; " +
			"overage: those beyond the limit. Takes a row for each subject and hour. Default none",
		Choices: []Choice{
			{"none", "Not metered", ""},
			{"units", "Invoice all units", ""},
			{"overage", "Invoice units beyond the limit", ""},
		},
		value: choice(func(r *Rule) *Metering { return &r.Metering }, meteringNames),
	},
	{
		Name: "meter_event", Label: "Meter event",
		Hint:    "Optional. The event name of a Stripe meter, which gets the units of each hour.",
		Sent:    "Event name of the Stripe meter that gets the units of each sealed hour; only for a metered rule; default none",
		Shown:   "Event name of the Stripe meter that gets the units of each sealed hour; empty: none",
		Schema:  map[string]any{"maxLength": maxMeterEvent},
		value:   text(func(r *Rule) *string { return &r.MeterEvent }),
		applies: func(r *Rule) bool { return r.Metering != MeterNone },
		check:   (*Rule).checkMeterEvent,
	},
}

// FieldNamed returns the field with a name, or nil.
func FieldNamed(name string) *Field {
	i := slices.IndexFunc(Fields, func(f Field) bool { return f.Name == name })
	if i < 0 {
		return nil
	}
	return &Fields[i]
}

// NewRule returns a rule with the defaults of all fields that are not required.
func NewRule(slug string) Rule {
	r := Rule{Slug: slug}
	for i := range Fields {
		if f := &Fields[i]; !f.Fixed && !f.Required {
			f.Reset(&r)
		}
	}
	return r
}

// Validate returns one error for each field that is out of its range.
func (r *Rule) Validate() []FieldError {
	var errs FieldErrors
	for i := range Fields {
		f := &Fields[i]
		before := len(errs)
		if f.Kind() == ChoiceKind && f.Get(r) == "" {
			errs.Add(f.Name, OneOf(f.names()))
		} else if f.check != nil {
			f.check(r, &errs)
		}
		if f.Name == "algorithm" && len(errs) > before {
			return errs // the ranges of other fields depend on it
		}
	}
	return errs
}
