package limit

import "strings"

// OnMissingAttribute is what a rule does with a check without an attribute that the rule counts by.
type OnMissingAttribute uint8

// SkipRule does not evaluate the rule, and DenyCheck denies the check.
const (
	SkipRule OnMissingAttribute = iota
	DenyCheck
)

var onMissingAttributeNames = Names[OnMissingAttribute]{SkipRule: "skip", DenyCheck: "deny"}

func (o OnMissingAttribute) String() string { return onMissingAttributeNames.Of(o) }

// ParseOnMissingAttribute returns the behaviour with a name such as "skip".
func ParseOnMissingAttribute(s string) (OnMissingAttribute, error) {
	return onMissingAttributeNames.Parse(s)
}

// attributePrefix begins a value of By that is an attribute of a check.
const attributePrefix = "attributes."

// AttributeOf returns the name of the attribute that a value of By stands for; for another value it
// returns the value and false.
func AttributeOf(by string) (name string, isAttribute bool) {
	return strings.CutPrefix(by, attributePrefix)
}

// Attributes returns the names of the attributes that the rule counts by, in the order of By.
func (r *Rule) Attributes() (names []string) {
	for _, by := range r.By {
		if name, isAttribute := AttributeOf(by); isAttribute {
			names = append(names, name)
		}
	}
	return names
}

// countsAttributes reports whether the rule counts by an attribute.
func (r *Rule) countsAttributes() bool { return len(r.Attributes()) > 0 }

// missingAttributeValue is that of the field on_missing_attribute: nil for a rule that counts by no
// attribute.
func missingAttributeValue() value {
	v := choice(func(r *Rule) *OnMissingAttribute { return &r.OnMissingAttribute }, onMissingAttributeNames)
	get := v.get
	v.get = func(r *Rule) any {
		if r.OnMissingAttribute == SkipRule && !r.countsAttributes() {
			return nil
		}
		return get(r)
	}
	return v
}

// checkMissingAttribute refuses a rule that denies for the lack of an attribute and counts by none.
func (r *Rule) checkMissingAttribute(errs *FieldErrors) {
	if r.OnMissingAttribute == DenyCheck && !r.countsAttributes() {
		errs.Add("on_missing_attribute", Wrong("Choose skip, or add attributes.NAME to by.", "cannot be deny, because by has no attribute"))
	}
}
