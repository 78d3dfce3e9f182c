// Package importer converts the configuration of other rate limiters to Weir's configuration
// document.
//
// The rules of envoyproxy/ratelimit are a tree of descriptors under a domain. Each limit in the
// tree becomes a rule for its own resource, and the tree becomes the templates of a route named
// after the domain, which map a descriptor to its resource (package route). For example,
//
//	domain: messaging
//	descriptors:
//	  - key: to_number
//	    rate_limit: {unit: day, requests_per_unit: 100}
//
// becomes the route "messaging" with the template ?to_number={} for the resource
// "messaging:to_number", and the rule "messaging-to-number" for this resource: a fixed window of
// 100 per day by subject. The subject is the descriptor's text, such as "to_number=2061234567", so
// each number has its own counter.
package importer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"weir/internal/limit"
	"weir/internal/route"
)

// Document is a configuration document with what was imported.
type Document struct {
	Format int     `yaml:"format"`
	Rules  []Rule  `yaml:"rules"`
	Routes []Route `yaml:"routes"`
}

// Rule is a rule of the document.
type Rule struct {
	Slug      string   `yaml:"slug"`
	Name      string   `yaml:"name"`
	Resource  string   `yaml:"resource"`
	Algorithm string   `yaml:"algorithm"`
	Limit     int64    `yaml:"limit"`
	Window    string   `yaml:"window"`
	By        []string `yaml:"by,flow"`
	Mode      string   `yaml:"mode,omitempty"`
}

// Route is a route of the document.
type Route struct {
	Slug            string     `yaml:"slug"`
	Name            string     `yaml:"name"`
	Subject         []string   `yaml:"subject,flow"`
	NoSubject       string     `yaml:"no_subject"`
	Resources       []Template `yaml:"resources"`
	DefaultResource string     `yaml:"default_resource"`
}

// Template is a template of a route.
type Template struct {
	Match    string `yaml:"match"`
	Resource string `yaml:"resource"`
	Cost     *int64 `yaml:"cost,omitempty"`
}

// YAML returns the document as YAML.
func (d *Document) YAML() ([]byte, error) {
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(d); err != nil {
		return nil, err
	}
	return b.Bytes(), e.Close()
}

// Note is a line of the report: a difference in Weir's behavior, or an unsupported feature.
type Note struct {
	Where string // the descriptor's path; "" for the file
	Text  string
}

func (n Note) String() string {
	if n.Where == "" {
		return n.Text
	}
	return n.Where + ": " + n.Text
}

// The file format of envoyproxy/ratelimit.
type envoyFile struct {
	Domain      string            `yaml:"domain"`
	Descriptors []envoyDescriptor `yaml:"descriptors"`
}

type envoyDescriptor struct {
	Key            string            `yaml:"key"`
	Value          string            `yaml:"value"`
	RateLimit      *envoyLimit       `yaml:"rate_limit"`
	Descriptors    []envoyDescriptor `yaml:"descriptors"`
	ShadowMode     bool              `yaml:"shadow_mode"`
	QuotaMode      bool              `yaml:"quota_mode"`
	DetailedMetric bool              `yaml:"detailed_metric"`
	ValueToMetric  bool              `yaml:"value_to_metric"`
	ShareThreshold bool              `yaml:"share_threshold"`
}

type envoyLimit struct {
	RequestsPerUnit int64  `yaml:"requests_per_unit"`
	Unit            string `yaml:"unit"`
	Unlimited       bool   `yaml:"unlimited"`
	Name            string `yaml:"name"`
	Replaces        []struct {
		Name string `yaml:"name"`
	} `yaml:"replaces"`
}

// windows maps units to windows. Like those of envoyproxy/ratelimit, they begin at multiples of
// their length since 1970.
var windows = map[string]string{
	"second": "1s", "minute": "1m", "hour": "1h", "day": "1d", "week": "7d", "month": "30d", "year": "365d",
}

// EnvoyRateLimit converts a file of envoyproxy/ratelimit to a document, with a report of the
// features without an equivalent.
func EnvoyRateLimit(data []byte) (*Document, []Note, error) {
	var file envoyFile
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	switch err := d.Decode(&file); {
	case errors.Is(err, io.EOF):
		return nil, nil, errors.New("the file is empty")
	case err != nil:
		return nil, nil, fmt.Errorf("the file is not a configuration of envoyproxy/ratelimit: %s", yamlError(err))
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, nil, errors.New("the file has more than one document (---): import each from a separate file")
	}
	if file.Domain == "" {
		return nil, nil, errors.New("the file has no domain")
	}
	im := &envoyImport{domain: file.Domain, names: map[string][]string{}, slugs: map[string]bool{}}
	im.findNames(file.Descriptors, nil)
	if err := im.descriptors(file.Descriptors, nil); err != nil {
		return nil, nil, err
	}
	return im.finish()
}

// goTypes matches the parts of messages of the YAML library that name types of this package.
var goTypes = regexp.MustCompile(` (?:in|into) (?:type )?\S*importer\.\w+`)

// yamlError returns what is wrong with a file, without names of types.
func yamlError(err error) string { return goTypes.ReplaceAllString(err.Error(), "") }

type envoyImport struct {
	domain    string
	rules     []Rule
	templates []Template
	names     map[string][]string // resources by limit name
	slugs     map[string]bool
	notes     []Note
	once      map[string]bool // notes about the file that were already added
}

// step is one level on the way to a descriptor.
type step struct{ *envoyDescriptor }

func (s step) wildcard() bool { return strings.HasSuffix(s.Value, "*") }

// open reports whether the level matches more than one value.
func (s step) open() bool { return s.Value == "" || s.wildcard() }

// match returns the level as an entry of a template.
func (s step) match() string {
	if s.open() {
		return route.Escape(s.Key) + "=" + route.Escape(strings.TrimSuffix(s.Value, "*")) + "{}"
	}
	return route.Escape(s.Key) + "=" + route.Escape(s.Value)
}

// name returns the level in readable form.
func (s step) name() string {
	if s.Value == "" {
		return s.Key
	}
	return s.Key + "=" + s.Value
}

func pathName(path []step) string {
	names := make([]string, len(path))
	for i, s := range path {
		names[i] = s.name()
	}
	return strings.Join(names, " > ")
}

func matchOf(path []step) string {
	entries := make([]string, len(path))
	for i, s := range path {
		entries[i] = s.match()
	}
	return "?" + strings.Join(entries, "&")
}

// resource returns the name of the limit of a path. It is unique.
func (im *envoyImport) resource(path []step) string {
	return im.domain + ":" + strings.ReplaceAll(strings.TrimPrefix(matchOf(path), "?"), "={}", "")
}

// findNames collects the resources with limits by name.
func (im *envoyImport) findNames(list []envoyDescriptor, path []step) {
	for i := range list {
		here := append(slices.Clone(path), step{&list[i]})
		if l := list[i].RateLimit; l != nil && l.Name != "" {
			im.names[l.Name] = append(im.names[l.Name], im.resource(here))
		}
		im.findNames(list[i].Descriptors, here)
	}
}

// descriptors imports one level. envoyproxy/ratelimit uses the entry with the exact value first,
// then those with a wildcard in order, then the one without a value, and it does not backtrack. A
// route uses the first template that matches, so the templates are in this order. After the
// templates of an entry whose values other entries of the level match, too, there is a template for
// all other descriptors below it.
func (im *envoyImport) descriptors(list []envoyDescriptor, path []step) error {
	ordered := make([]step, len(list))
	for i := range list {
		if list[i].Key == "" {
			return fmt.Errorf("a descriptor below %q has no key", pathName(path))
		}
		ordered[i] = step{&list[i]}
		if slices.ContainsFunc(ordered[:i], func(s step) bool { return s.Key == list[i].Key && s.Value == list[i].Value }) {
			return fmt.Errorf("%s: the descriptor appears twice; remove one of them", pathName(append(slices.Clone(path), ordered[i])))
		}
	}
	rank := func(s step) int {
		switch {
		case s.Value == "":
			return 2
		case s.wildcard():
			return 1
		}
		return 0
	}
	slices.SortStableFunc(ordered, func(a, b step) int { return rank(a) - rank(b) })
	for i, s := range ordered {
		here := append(slices.Clone(path), s)
		if s.RateLimit != nil {
			if err := im.limit(here); err != nil {
				return err
			}
		}
		im.flags(here)
		if err := im.descriptors(s.Descriptors, here); err != nil {
			return err
		}
		shadowed := slices.ContainsFunc(ordered[i+1:], func(later step) bool { return later.Key == s.Key && later.open() })
		if shadowed && (len(s.Descriptors) > 0 || s.RateLimit == nil) {
			im.templates = append(im.templates, Template{Match: matchOf(here) + "&...", Resource: im.unlimited()})
		}
	}
	return nil
}

// unlimited is a resource without a rule.
func (im *envoyImport) unlimited() string { return im.domain }

// limit imports the limit of a path.
func (im *envoyImport) limit(path []step) error {
	last := path[len(path)-1]
	l := last.RateLimit
	t := Template{Match: matchOf(path), Resource: im.resource(path)}
	if replaced := im.replaced(path, l); len(replaced) > 0 {
		t.Match += " replaces " + strings.Join(replaced, ", ")
	}
	if n := len(t.Match); n > route.MaxMatchBytes {
		im.note(path, fmt.Sprintf("not imported: its template has %d bytes, and may have %d", n, route.MaxMatchBytes))
		return nil
	}
	if l.Unlimited {
		im.templates = append(im.templates, t)
		return nil
	}
	window, known := windows[strings.ToLower(l.Unit)]
	if !known {
		return fmt.Errorf("%s: unit %q: must be second, minute, hour, day, week, month or year", pathName(path), l.Unit)
	}
	if l.RequestsPerUnit < 0 {
		return fmt.Errorf("%s: requests_per_unit %d: must not be negative", pathName(path), l.RequestsPerUnit)
	}
	rule := Rule{
		Slug: im.slug(path), Name: im.ruleName(path, l), Resource: t.Resource, Algorithm: limit.FixedWindow.String(),
		Limit: l.RequestsPerUnit, Window: window, By: by(path), Mode: limit.Enforce.String(),
	}
	if l.RequestsPerUnit == 0 {
		// Nothing is allowed: a hit costs two units of one.
		two := int64(2)
		rule.Limit, t.Cost = 1, &two
	}
	if last.ShadowMode {
		rule.Mode = limit.Shadow.String()
	}
	im.rules, im.templates = append(im.rules, rule), append(im.templates, t)
	return nil
}

// replaced returns the resources that a limit replaces.
func (im *envoyImport) replaced(path []step, l *envoyLimit) (resources []string) {
	for _, r := range l.Replaces {
		if len(im.names[r.Name]) == 0 {
			im.note(path, fmt.Sprintf("replaces %q, but no limit of the file has this name", r.Name))
		}
		resources = append(resources, im.names[r.Name]...)
	}
	return resources
}

// by returns what a limit counts by: all values of the descriptor, except those that share a
// threshold.
func by(path []step) []string {
	if !slices.ContainsFunc(path, func(s step) bool { return s.ShareThreshold && s.wildcard() }) {
		return []string{"subject"}
	}
	by := []string{}
	times := map[string]int{}
	for _, s := range path {
		name := attributeName(s.Key)
		if times[name]++; times[name] > 1 {
			name += "." + strconv.Itoa(times[name])
		}
		if s.open() && !s.ShareThreshold {
			by = append(by, "attributes."+name)
		}
	}
	return by
}

// attributeName returns the name of the attribute for an entry.
func attributeName(key string) string {
	return strings.Map(func(c rune) rune {
		if c > '~' || !limit.ValidAttributeName([]byte{'a', byte(c)}) {
			return '_'
		}
		return c
	}, key)
}

func (im *envoyImport) ruleName(path []step, l *envoyLimit) string {
	name := im.domain + ": " + pathName(path)
	if l.Name != "" {
		name += " (" + l.Name + ")"
	}
	if runes := []rune(name); len(runes) > 200 {
		name = string(runes[:197]) + "..."
	}
	return name
}

// slug returns the slug of the rule for a path.
func (im *envoyImport) slug(path []step) string {
	text := im.domain
	for _, s := range path {
		text += "-" + s.Key
		if s.Value != "" {
			text += "-" + s.Value
		}
	}
	base := strings.Trim(string(route.DomainSlug(nil, []byte(text))), "-")
	slug := base
	for n := 2; slug == "" || im.slugs[slug]; n++ {
		end := "-" + strconv.Itoa(n)
		slug = base[:min(len(base), 63-len(end))] + end
	}
	im.slugs[slug] = true
	return slug
}

// flags reports the flags of a descriptor without an equivalent.
func (im *envoyImport) flags(path []step) {
	last := path[len(path)-1]
	if last.QuotaMode {
		im.note(path, "quota_mode has no equivalent: the limit denies")
	}
	if last.ShadowMode && last.RateLimit == nil {
		im.note(path, "shadow_mode without a limit has no effect")
	}
	if last.DetailedMetric || last.ValueToMetric {
		im.note(path, "detailed_metric and value_to_metric are not needed: usage shows each resource, and its busiest subjects")
	}
	if last.Key == "subject" {
		im.note(path, "descriptors with the key subject name their subject, and are not decided by the route")
	}
	if last.Value == "" && strings.HasSuffix(last.Key, "*") {
		im.note(path, "a * at the end of a key has no equivalent: the key is used literally")
	}
}

func (im *envoyImport) note(path []step, text string) {
	im.notes = append(im.notes, Note{Where: pathName(path), Text: text})
}

func (im *envoyImport) finish() (*Document, []Note, error) {
	slug := string(route.DomainSlug(nil, []byte(im.domain)))
	if slug != im.domain {
		im.notes = append(im.notes, Note{Text: fmt.Sprintf("the domain %q is decided by the route %q", im.domain, slug)})
	}
	r := Route{
		Slug: slug, Name: im.domain, Subject: []string{route.DescriptorSource}, NoSubject: string(route.AllowNoSubject),
		Resources: im.templates, DefaultResource: im.unlimited(),
	}
	d := &Document{Format: 1, Rules: im.rules, Routes: []Route{r}}
	if d.Rules == nil {
		d.Rules = []Rule{}
	}
	if d.Routes[0].Resources == nil {
		d.Routes[0].Resources = []Template{}
	}
	return d, im.notes, d.validate()
}

// validate returns an error if Weir would refuse the document.
func (d *Document) validate() error {
	if n := len(d.Rules); n > limit.MaxRules {
		return fmt.Errorf("the file has %d limits, and a tenant may have %d rules", n, limit.MaxRules)
	}
	for _, r := range d.Routes {
		if n := len(r.Resources); n > route.MaxTemplates {
			return fmt.Errorf("the file needs %d templates, and a route may have %d", n, route.MaxTemplates)
		}
		full := route.New(r.Slug)
		full.Name, full.Subject, full.NoSubject, full.DefaultResource = r.Name, r.Subject, route.NoSubject(r.NoSubject), r.DefaultResource
		for _, t := range r.Resources {
			full.Resources = append(full.Resources, route.Template{Match: t.Match, Resource: t.Resource, Cost: t.Cost})
		}
		if errs := full.Validate(); len(errs) > 0 {
			return fmt.Errorf("route %s: %w", r.Slug, errs[0])
		}
	}
	return nil
}
