// Package gateways has the configurations on the pages of this directory. The command weir prints
// them with the values of an installation.
package gateways

import (
	"embed"
	"path"
	"regexp"
	"sort"
	"strings"
)

// The values on the pages that readers replace with their own.
const (
	Weir = "127.0.0.1:8080" // address of Weir
	Key  = "YOUR_WEIR_KEY"
)

//go:embed *.md
var pages embed.FS

// A File is a file of a gateway's configuration.
type File struct{ Name, Content string }

var files = regexp.MustCompile("(?ms)^<!-- file: (\\S+) -->\n+```[a-z]*\n(.*?)^```$")

// Names returns the names of the gateways with a configuration, sorted.
func Names() []string {
	entries, err := pages.ReadDir(".")
	if err != nil {
		panic(err) // cannot fail: the files are embedded
	}
	var names []string
	for _, entry := range entries {
		name := strings.TrimSuffix(entry.Name(), path.Ext(entry.Name()))
		if len(Files(name)) > 0 {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	return names
}

// Files returns the files of a gateway's configuration, or nil if the gateway is unknown.
func Files(gateway string) []File {
	page, err := pages.ReadFile(gateway + ".md")
	if err != nil {
		return nil
	}
	var found []File
	for _, file := range files.FindAllStringSubmatch(string(page), -1) {
		found = append(found, File{Name: file[1], Content: file[2]})
	}
	return found
}
