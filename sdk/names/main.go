// Command names changes the names under which the clients are published, in all files. The names
// are in sdk/names.json.
//
//	go run ./sdk/names                                  print the names
//	go run ./sdk/names go=github.com/acme/weir-go ...   change some, in all files of the repository
//	go run ./sdk/names -check                           verify that manifests agree with sdk/names.json
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const namesFile = "sdk/names.json"

// Names are the names under which the clients are published.
type Names struct {
	Go        string `json:"go"`        // a module path
	NPM       string `json:"npm"`       // a package, with or without a scope
	PyPI      string `json:"pypi"`      // a project
	Terraform string `json:"terraform"` // namespace/type of a provider
}

// A kind is one of the names: its form, and where it is published from.
type kind struct {
	name     string
	field    func(*Names) *string
	pattern  *regexp.Regexp
	manifest string         // the file that publishes it
	in       *regexp.Regexp // finds the name in it
}

var kinds = []kind{
	{"go", func(n *Names) *string { return &n.Go }, regexp.MustCompile(`^[a-z0-9.-]+\.[a-z]+(/[A-Za-z0-9._~-]+)+$`),
		"sdk/go/go.mod", regexp.MustCompile(`(?m)^module (\S+)$`)},
	{"npm", func(n *Names) *string { return &n.NPM }, regexp.MustCompile(`^(@[a-z0-9~-][a-z0-9._~-]*/)?[a-z0-9~-][a-z0-9._~-]*$`),
		"sdk/typescript/package.json", regexp.MustCompile(`(?m)^\s*"name": "([^"]+)"`)},
	{"pypi", func(n *Names) *string { return &n.PyPI }, regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$`),
		"sdk/python/pyproject.toml", regexp.MustCompile(`(?m)^name = "([^"]+)"`)},
	{"terraform", func(n *Names) *string { return &n.Terraform }, regexp.MustCompile(`^[a-z0-9-]+/[a-z0-9-]+$`),
		"terraform/main.go", regexp.MustCompile(`const name = "([^"]+)"`)},
}

func main() {
	if err := run(".", os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "names:", err)
		os.Exit(1)
	}
}

func run(root string, args []string) error {
	names, err := read(root)
	switch {
	case err != nil:
		return err
	case len(args) == 0:
		for _, k := range kinds {
			fmt.Printf("%s=%s\n", k.name, *k.field(&names))
		}
		return nil
	case slices.Equal(args, []string{"-check"}):
		return check(root, names)
	}
	return change(root, names, args)
}

func read(root string) (names Names, err error) {
	content, err := os.ReadFile(filepath.Join(root, namesFile))
	if err != nil {
		return names, err
	}
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.DisallowUnknownFields()
	return names, decoder.Decode(&names)
}

// check compares the manifests with the names. It skips clients that are not in the repository.
func check(root string, names Names) error {
	for _, k := range kinds {
		want := *k.field(&names)
		if !k.pattern.MatchString(want) {
			return fmt.Errorf("%s: %q is not a valid name for %s", namesFile, want, k.name)
		}
		content, err := os.ReadFile(filepath.Join(root, k.manifest))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		found := k.in.FindSubmatch(content)
		if found == nil || string(found[1]) != want {
			return fmt.Errorf("%s: the name must be %q, as in %s. Run: go run ./sdk/names %s=NAME", k.manifest, want, namesFile, k.name)
		}
	}
	return nil
}

// change replaces names in all files that git tracks.
func change(root string, names Names, args []string) error {
	var replacements []replacement
	for _, arg := range args {
		name, to, _ := strings.Cut(arg, "=")
		i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == name })
		if i < 0 {
			return fmt.Errorf("unknown name %q; pass go=, npm=, pypi= or terraform=", name)
		}
		if !kinds[i].pattern.MatchString(to) {
			return fmt.Errorf("%q is not a valid name for %s", to, name)
		}
		from := *kinds[i].field(&names)
		replacements = append(replacements, replacement{from, to})
		if name == "terraform" { // Terraform finds a provider by the name of its program
			replacements = append(replacements, replacement{providerProgram(from), providerProgram(to)})
		}
	}
	files, err := tracked(root)
	if err != nil {
		return err
	}
	if err := changeable(root, files, replacements); err != nil {
		return err
	}
	for _, file := range files {
		path := filepath.Join(root, file)
		info, err := os.Lstat(path)
		if err != nil || !info.Mode().IsRegular() {
			continue // deleted but not committed, or a link
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		changed := replace(content, replacements)
		if bytes.Equal(changed, content) {
			continue
		}
		if err := os.WriteFile(path, changed, info.Mode()); err != nil {
			return err
		}
		fmt.Println(file)
	}
	return nil
}

func providerProgram(name string) string { return "terraform-provider-" + path.Base(name) }

type replacement struct{ from, to string }

// changeable refuses a name that is a plain word of the repository, because the next change could
// not tell it from the word.
func changeable(root string, files []string, replacements []replacement) error {
	for _, file := range files {
		content, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			continue // deleted but not committed, or a link
		}
		for _, r := range replacements {
			if r.from != r.to && !strings.ContainsAny(r.to, "/-._") && !bytes.Equal(replace(content, []replacement{{r.to, ""}}), content) {
				return fmt.Errorf("%q is a word of %s, so the name could not be changed again; choose a name of several parts, such as acme-%s", r.to, file, r.to)
			}
		}
	}
	return nil
}

// replace replaces names that are a complete word or the beginning of a longer path. It does so in
// one pass, because a new name may contain an old one.
func replace(content []byte, replacements []replacement) []byte {
	var out []byte
	for {
		i, next := len(content), replacement{}
		for _, r := range replacements {
			if at := bytes.Index(content, []byte(r.from)); at >= 0 && (at < i || at == i && len(r.from) > len(next.from)) {
				i, next = at, r
			}
		}
		if next.from == "" {
			return append(out, content...)
		}
		end := i + len(next.from)
		before := byte(' ')
		if i > 0 {
			before = content[i-1]
		} else if len(out) > 0 {
			before = out[len(out)-1]
		}
		inWord := wordByte(before, "@._-") || end < len(content) && wordByte(content[end], "_-")
		out = append(out, content[:i]...)
		if inWord {
			out = append(out, next.from...)
		} else {
			out = append(out, next.to...)
		}
		content = content[end:]
	}
}

func wordByte(c byte, also string) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte(also, c) >= 0
}

// tracked lists the files of the repository.
func tracked(root string) ([]string, error) {
	out, err := exec.Command("git", "-C", root, "ls-files", "-z").Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 }), nil
}
