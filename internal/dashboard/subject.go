package dashboard

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
)

// subject shows any subject, registered or not, because counters need no registration.
func (d *dashboard) subject(w http.ResponseWriter, r *http.Request, v *visit) error {
	name, err := subjectOf(r)
	if err != nil {
		return err
	}
	return d.showSubject(w, r, v, name, http.StatusOK, &form{})
}

// subjectOf returns the subject in the path.
func subjectOf(r *http.Request) (string, error) {
	name, err := url.PathUnescape(strings.TrimPrefix(r.URL.EscapedPath(), "/subjects/"))
	if err != nil || limit.ValidName(name) != nil {
		return "", tenants.ErrNotFound
	}
	return name, nil
}

// showSubject shows a subject's page, including a refused form. With fragment=limits it returns
// only the live part.
func (d *dashboard) showSubject(w http.ResponseWriter, r *http.Request, v *visit, name string, status int, f *form) error {
	query := r.URL.Query()
	values, asked, err := countedValues(name, query)
	if err != nil {
		return err
	}
	policy, err := d.Policies.Get(r.Context(), v.actor().TenantID())
	if err != nil {
		return err
	}
	view := subjectView{Tab: query.Get("tab"), Subject: name, Path: subjectURL(name), Query: askedQuery(asked), All: query.Get("show") == "all", sentForms: sentForms{f}, open: formName(query.Get("open")), chosenPlan: query.Get("plan")}
	view.Log, view.now = query.Get("scale") == scaleLog, v.now
	if view.Period, err = periodOf(query.Get("period")); err != nil {
		return err
	}
	switch view.Tab {
	case tabLimits, tabUsage, tabDenials, tabAudit:
	case "":
		view.Tab = tabLimits
	default:
		return invalidField("tab", limit.MustBe("limits, usage, denials or audit"))
	}
	if query.Get("fragment") == "over" {
		return d.foreseeSubject(w, r, v, name)
	}
	if query.Get("fragment") == "seen" {
		seen, err := d.readSeen(r.Context(), v.actor(), name, v.now)
		if err != nil {
			return err
		}
		return d.render(w, r, status, seenRows(seen))
	}
	limits, err := d.inspect(r.Context(), policy, values)
	if err != nil {
		return err
	}
	view.plans = d.planNames(r.Context(), v.actor())
	view.fill(limits, asked)
	if query.Get("fragment") == "limits" {
		if err := d.readDenied(r.Context(), v, &view); err != nil {
			return err
		}
		view.Unseen = query.Get("unseen") != "" && len(view.Denied) == 0
		return d.renderRows(view.rows(), w, r, status, subjectLive(v.frame, &view))
	}
	if err := d.readSubject(r.Context(), v, &view); err != nil {
		return err
	}
	if err := d.readSubjectChart(r.Context(), v, &view, limits.Rules); err != nil {
		return err
	}
	if view.Tab == tabUsage {
		if err := d.readTotals(r.Context(), v, &view); err != nil {
			return err
		}
		if view.Seen, err = d.readSeen(r.Context(), v.actor(), name, v.now); err != nil {
			return err
		}
	}
	if err := d.lookFor(r.Context(), v, &view); err != nil {
		return err
	}
	if view.Customer, err = d.readCustomer(r, v, name); err != nil {
		return err
	}
	v.frame.Title = name
	return d.renderRows(view.rows(), w, r, status, subjectPage(v.frame, &view))
}

// askedQuery returns the requested values in the form for an address.
func askedQuery(asked map[string]string) string {
	values := url.Values{}
	for field, value := range asked {
		values.Set(field, value)
	}
	return values.Encode()
}

// countedValues reads the values besides the subject that a rule may count by: "resource" and
// "attributes.NAME".
func countedValues(subject string, query url.Values) (values check.Request, asked map[string]string, err error) {
	values, asked = check.Request{Subject: subject}, map[string]string{}
	for _, field := range slices.Sorted(maps.Keys(query)) {
		value := query.Get(field)
		name, isAttribute := limit.AttributeOf(field)
		if value == "" || field != "resource" && !isAttribute {
			continue
		}
		problem := limit.ValidName(value)
		switch {
		case isAttribute && !limit.ValidAttributeName(name):
			return values, nil, invalidField(field, limit.Wrong("Rename the attribute.", "is not a valid attribute name"))
		case problem != nil:
			return values, nil, invalidField(field, problem)
		case len(values.Attributes) == limit.MaxAttributes:
			return values, nil, invalidField(field, limit.Wrong("Remove attributes.", "exceeds the number of attributes"))
		}
		asked[field] = value
		if isAttribute {
			values.Attributes = append(values.Attributes, check.Attribute{Name: name, Value: value})
		} else {
			values.Resource = value
		}
	}
	return values, asked, nil
}
