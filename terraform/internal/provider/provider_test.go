package provider

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"

	"weir/terraform/internal/core"
)

// TestReferenceIsCurrent compares the pages of the reference with the schema.
func TestReferenceIsCurrent(t *testing.T) {
	module := filepath.Join("..", "..")
	pages, err := Reference(module)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range pages {
		got, err := os.ReadFile(filepath.Join(module, "docs", name))
		if err != nil || string(got) != want {
			t.Errorf("docs/%s differs from the schema. Run make generate-terraform", name)
		}
	}
	var found []string
	err = filepath.WalkDir(filepath.Join(module, "docs"), func(name string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			relative, _ := filepath.Rel(filepath.Join(module, "docs"), name)
			found = append(found, filepath.ToSlash(relative))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range found {
		if pages[name] == "" {
			t.Errorf("docs/%s is not part of the reference", name)
		}
	}
}

// TestAttributesAreDocumented verifies that each attribute has a description.
func TestAttributesAreDocumented(t *testing.T) {
	var walk func(where string, list []*attribute)
	walk = func(where string, list []*attribute) {
		for _, a := range list {
			if a.markdown() == "" {
				t.Errorf("%s.%s has no description", where, a.name)
			}
			walk(where+"."+a.name, a.fields)
		}
	}
	for _, k := range kinds {
		walk("weir_"+k.name, k.attributes)
		for _, s := range k.sources() {
			walk("data.weir_"+s.name(), s.attributes)
		}
	}
}

// TestDefaultsAreFields verifies that the table names fields that exist, and that each field of a
// body has a default unless it is required or depends on the server.
func TestDefaultsAreFields(t *testing.T) {
	fromServer := []string{"plan.default", "plan.newest_version", "subject.plan_version", "billing_price.endpoint", "billing_endpoint.api_key", "billing_endpoint.signing_secrets"}
	for _, k := range kinds {
		for name := range k.fallbacks {
			if attributeNamed(k.attributes, name) == nil {
				t.Errorf("%s has a default for %s, which is no attribute", k.name, name)
			}
		}
		for _, a := range k.attributes {
			if a.optional && !a.hasFallback && !slices.Contains(fromServer, k.name+"."+a.name) {
				t.Errorf("%s.%s has no default", k.name, a.name)
			}
		}
	}
}

// TestConfiguration verifies where the server and the key come from.
func TestConfiguration(t *testing.T) {
	home := t.TempDir()
	login := filepath.Join(home, ".config", "weir", "login.json")
	if err := os.MkdirAll(filepath.Dir(login), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(login, []byte(`{"url":"https://login.example.com","key":"stored"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		config  string
		environ map[string]string
		want    string // an error; "": none
	}{
		"attributes":             {`url = "https://a.example.com"` + "\n" + `key = "k"`, nil, ""},
		"the environment":        {``, map[string]string{"WEIR_URL": "https://a.example.com", "WEIR_KEY": "k"}, ""},
		"both":                   {`url = "https://a.example.com"`, map[string]string{"WEIR_KEY": "k"}, ""},
		"the login":              {``, map[string]string{"HOME": home}, ""},
		"the login, XDG":         {``, map[string]string{"XDG_CONFIG_HOME": filepath.Join(home, ".config")}, ""},
		"the login's server":     {`url = "https://login.example.com/"`, map[string]string{"HOME": home}, ""},
		"another server":         {`url = "https://a.example.com"`, map[string]string{"HOME": home}, "Missing API key"},
		"no server":              {`key = "k"`, map[string]string{"HOME": home}, "Missing server address"},
		"nothing":                {``, nil, "Missing server address"},
		"an address of no use":   {`url = "weir.example.com"` + "\n" + `key = "k"`, nil, "invalid server address"},
		"a password in it":       {`url = "https://u:p@weir.example.com"` + "\n" + `key = "k"`, nil, "invalid server address"},
		"a timeout":              {`url = "https://a.example.com"` + "\n" + `key = "k"` + "\n" + `timeout = "10s"`, nil, ""},
		"a timeout without unit": {`url = "https://a.example.com"` + "\n" + `key = "k"` + "\n" + `timeout = "10"`, nil, "Invalid timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			p := New("test")
			p.getenv = func(name string) string { return c.environ[name] }
			workspace, err := core.New(providerserver.NewProtocol6(p)())
			if err != nil {
				t.Fatal(err)
			}
			_, err = workspace.Apply("provider \"weir\" {\n" + c.config + "\n}\n")
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestPathOfPointer(t *testing.T) {
	for _, c := range []struct{ kind, pointer, want string }{
		{"rule", "/limit", "limit"},
		{"rule", "/by/0", "by[0]"},
		{"rule", "path:rule", "slug"},
		{"plan", "/limits/api/limit", `limits["api"].limit`},
		{"plan", "/limits/api", `limits["api"]`},
		{"plan", "/limits/a~1b/burst", `limits["a/b"].burst`},
		{"route", "/resources/1/match", "resources[1].match"},
		{"subject", "/labels/a", `labels["a"]`},
		{"billing_price", "/credits/units", "credits.units"},
		{"billing_endpoint", "/provider", "system"},
		{"rule", "", ""},
		{"rule", "/nothing", ""},
		{"rule", "header:If-Match", ""},
	} {
		at, found := pathOfPointer(byName()[c.kind].attributes, c.pointer)
		if found != (c.want != "") || found && at.String() != c.want {
			t.Errorf("%s %s: got %s, %t", c.kind, c.pointer, at, found)
		}
	}
}
