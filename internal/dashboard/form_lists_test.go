package dashboard

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"html"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/route"
	"weir/internal/tenants"
)

// filled returns as many entries as a form has space for.
func filled(entry func(i int) string) string {
	var b strings.Builder
	for i := 0; b.Len() < maxWriteForm; i++ {
		b.WriteString(entry(i))
	}
	return b.String()
}

func filledWith(entry string) string { return filled(func(int) string { return entry }) }

// However long a list is, no more of it is read than its maximum and one more. Before, each of some
// ten thousand entries was read, compared with all others and had a problem of its own: a form
// took up to 0.8 seconds of a processor.
func TestListsAreCut(t *testing.T) {
	numbered := filled(func(i int) string { return fmt.Sprintf("%x ", i) })
	lines := filled(func(i int) string { return fmt.Sprintf("%x:=\n", i) })
	for name, c := range map[string]struct {
		field, text string
		read        func(f *form) int
		most        int
	}{
		"sources":           {"subject", lines, func(f *form) int { return len(routeOf(f, "x", &route.Route{}).Subject) }, route.MaxSources},
		"templates":         {"resources", lines, func(f *form) int { return len(routeOf(f, "x", &route.Route{}).Resources) }, route.MaxTemplates},
		"route attributes":  {"attributes", lines, func(f *form) int { return len(routeOf(f, "x", &route.Route{}).Attributes) }, limit.MaxAttributes},
		"counted by":        {"attributes", numbered, func(f *form) int { return len(byOf(f, nil)) }, limit.MaxBy},
		"tested attributes": {"attributes", lines, func(f *form) int { return len(f.check(nil).Attributes) }, limit.MaxAttributes},
		"headers":           {"headers", lines, func(f *form) int { return len(f.triedRequest().headers) }, maxTestHeaders},
		"labels":            {"labels", lines, func(f *form) int { return len(f.labels()) }, tenants.MaxLabels},
		"addresses":         {"addresses", numbered, func(f *form) int { return len(f.bounds().Addresses) }, tenants.MaxKeyBounds},
		"resources of keys": {"resources", lines, func(f *form) int { return len(f.bounds().Resources) }, tenants.MaxKeyBounds},
	} {
		require.LessOrEqual(t, c.read(&form{values: url.Values{c.field: {c.text}}}), c.most+1, name)
	}
}

// The problems of a list are shown once each, up to ten, and repeat only the beginning of an entry.
func TestProblemsOfAListAreCut(t *testing.T) {
	f := &form{values: url.Values{"resources": {filledWith(strings.Repeat("a", 650) + "\n")}}}
	r := routeOf(f, "x", &route.Route{})
	r.Resources = r.Resources[:route.MaxTemplates]
	f.wrongRoute(r.Validate())
	require.Contains(t, f.Error("resources"), "line 1, “aaa")
	require.Contains(t, f.Error("resources"), "line 10, “aaa")
	require.NotContains(t, f.Error("resources"), "line 11,")
	require.Contains(t, f.Error("resources"), "; and 90 more problems")
	require.Less(t, len(f.Error("resources")), 2*maxShownProblems*maxShownRunes)
}

// listForms are the forms with lists, with a form that is valid except for the list, an entry, and
// what the page says about 64 KiB of such entries.
func (s *stack) listForms(t *testing.T) []listForm {
	key, _, err := s.store.CreateKey(t.Context(), s.a, tenants.NewAPIKey{Name: "old", Scopes: []tenants.Scope{tenants.ScopeCheck}})
	require.NoError(t, err)
	details := url.Values{"do": {"details"}, "reason": {"x"}}
	keyForm := url.Values{"do": {"edit"}, "name": {"x"}, "check": {"on"}}
	page := url.Values{"auto_approve_percent": {"1"}, "auto_approve_for": {"1d"}, "auto_approve_every": {"1d"}}
	tested := url.Values{"method": {"GET"}, "path": {"/"}}
	var forms []listForm
	for _, path := range []string{"/routes", "/routes/shop/edit"} {
		forms = append(forms, listForm{path, s.routeForm(), "subject", "header:X-%d\n", "must have 1 to 8 sources"},
			listForm{path, s.routeForm(), "resources", "/p%d\n", "may be at most 100"},
			listForm{path, s.routeForm(), "attributes", "a%d = ip\n", "may be at most 16"})
	}
	for _, path := range []string{"/rules", "/rules/api/edit", "/rules/preview"} {
		forms = append(forms, listForm{path, s.ruleForm(), "attributes", "a%d,", "must be at most 14"})
	}
	for _, path := range []string{"/keys", "/keys/" + key.ID.String()} {
		forms = append(forms, listForm{path, keyForm, "addresses", "10.0.0.%d\n", "may be at most 20"}, listForm{path, keyForm, "resources", "chat.%d\n", "may be at most 20"})
	}
	return append(forms,
		listForm{"/routes/shop", tested, "headers", "X-%d: a\n", "must be at most 100 lines"},
		listForm{"/subjects/ada", details, "labels", "a%d: b\n", "may be at most 32"},
		listForm{customerPageURL, page, "frame_origins", "https://a%d.example.com\n", "may be at most 20"},
		listForm{testerURL, url.Values{"subject": {"x"}}, "attributes", "a%d=b\n", "must be at most 16 in total"})
}

type listForm struct {
	path         string
	form         url.Values
	field, entry string
	says         string
}

// A form whose list is as long as a form can be is refused with what the list may have, on a page
// that is not much longer than the form.
func TestLongListsAreRefused(t *testing.T) {
	s := newStack(t)
	b := s.as("ann@example.com")
	require.Equal(t, http.StatusSeeOther, b.post("/routes", s.routeForm()).status)
	require.Equal(t, http.StatusSeeOther, b.post("/rules", s.ruleForm()).status)
	for _, c := range s.listForms(t) {
		space := maxWriteForm
		if c.path == testerURL { // it is in the address
			space = 12 << 10
		}
		values := maps.Clone(c.form)
		var list strings.Builder
		for i, size := 0, len(values.Encode()); ; i++ {
			entry := fmt.Sprintf(c.entry, i)
			if size += len(url.QueryEscape(entry)); size > space-100 {
				break
			}
			list.WriteString(entry)
		}
		values.Set(c.field, list.String())
		what := c.path + ": " + c.field
		var got page
		if c.path == testerURL {
			got = b.get(c.path + "?" + values.Encode())
		} else {
			got = b.write(c.path, values)
		}
		require.Equal(t, http.StatusUnprocessableEntity, got.status, what)
		require.Contains(t, strings.ToLower(html.UnescapeString(got.body)), strings.ToLower(c.says), what)
		require.Less(t, len(got.body), 3*maxWriteForm, what)
	}
}

// Each field of the pages for several lines is a list of listForms, or a text.
func TestAllListsAreKnown(t *testing.T) {
	s := newStack(t)
	known := []string{"description"}
	for _, c := range s.listForms(t) {
		known = append(known, c.field)
	}
	files, err := filepath.Glob("*.templ")
	require.NoError(t, err)
	found := 0
	for _, file := range files {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`@textArea\((?:field\{.*?Name: |ruleInput\([^,]*, )"([^"]+)"`).FindAllSubmatch(source, -1) {
			found++
			require.Contains(t, known, string(m[1]), "%s: a new list belongs into listForms", file)
		}
		for _, m := range regexp.MustCompile(`(?:@textArea\(|<textarea)[^\n]*`).FindAll(source, -1) {
			require.Regexp(t, `Name: "|ruleInput\(|x\.attrs|name="(note|reason)"`, string(m), file)
		}
	}
	require.Greater(t, found, 10)
}

// Code that splits the fields of a form bounds what it makes of them, so it is in one file.
func TestOnlyListsSplitFields(t *testing.T) {
	splits := []string{"Lines", "Fields", "FieldsFunc", "FieldsSeq", "FieldsFuncSeq", "Split", "SplitN", "SplitAfter", "SplitSeq", "SplitAfterSeq"}
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	found := map[string]bool{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") || strings.HasSuffix(file, "_templ.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		ast.Inspect(parsed, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			of, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !slices.Contains(splits, of.Sel.Name) || fmt.Sprint(of.X) != "strings" {
				return true
			}
			ast.Inspect(call.Args[0], func(n ast.Node) bool {
				if name, ok := n.(*ast.Ident); ok && slices.Contains([]string{"Get", "Or", "values", "PostForm", "FormValue"}, name.Name) {
					found[file] = true
				}
				return true
			})
			return true
		})
	}
	require.Equal(t, map[string]bool{"form_lists.go": true}, found)
}
