// Package gateways has the configurations on the pages of this directory. The command weir prints
// them with the values of an installation.
package gateways

import (
	"embed"
	"fmt"
	"net"
	"net/url"
	"path"
	"regexp"
	"sort"
	"strings"
)

// The values on the pages that readers replace with their own.
const (
	Weir        = "127.0.0.1:8080" // address of Weir without TLS
	GRPC        = "127.0.0.1:8081" // address of its rate-limit service for Envoy
	Key         = "YOUR_WEIR_KEY"
	Host        = "weir.example.com" // address of Weir with TLS, and the name in its certificate
	Port        = "443"
	Authorities = "/etc/ssl/certs/ca-certificates.crt" // certificates that are trusted
)

//go:embed *.md
var pages embed.FS

// A File is a file of a gateway's configuration.
type File struct{ Name, Content string }

var fences = regexp.MustCompile("(?ms)^<!-- ((?:https: )?file: \\S+|https: replace|https: by) -->\n+```[a-z]*\n(.*?)^```$")

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

// Files returns the files of a gateway's configuration as they are on its page, or nil if the
// gateway is unknown.
func Files(gateway string) []File {
	files, _, _ := read(gateway)
	return files
}

// read returns the files on the page of a gateway, the further files that it needs to ask Weir over
// HTTPS, and the changes for HTTPS: pairs of a text in the files and its replacement.
func read(gateway string) (files, further []File, changes [][2]string) {
	page, err := pages.ReadFile(gateway + ".md")
	if err != nil {
		return nil, nil, nil
	}
	for _, fence := range fences.FindAllStringSubmatch(string(page), -1) {
		marker, content := fence[1], fence[2]
		name, secure := strings.CutPrefix(marker, "https: file: ")
		switch {
		case secure:
			further = append(further, File{Name: name, Content: content})
		case marker == "https: replace":
			changes = append(changes, [2]string{content})
		case marker == "https: by":
			changes[len(changes)-1][1] = content
		default:
			files = append(files, File{Name: strings.TrimPrefix(marker, "file: "), Content: content})
		}
	}
	return files, further, changes
}

// Configure returns the files of a gateway's configuration for the Weir server with this address,
// such as https://weir.example.com. authorities is the file of the certificate authorities that the
// gateway trusts, as PEM; "": those of the system. It fails if the gateway is unknown, or cannot
// use the address.
func Configure(gateway string, server *url.URL, key, authorities string) ([]File, error) {
	files, further, changes := read(gateway)
	if files == nil {
		return nil, fmt.Errorf("unknown gateway %q: choose one of %s", gateway, strings.Join(Names(), ", "))
	}
	if strings.Trim(server.Path, "/") != "" {
		return nil, fmt.Errorf("the address %s has a path: gateways need the address of the server alone", server)
	}
	name, port := server.Hostname(), server.Port()
	connect := name
	if name == "localhost" {
		connect = "127.0.0.1" // some gateways would take turns between it and ::1
	}
	common := []string{GRPC, net.JoinHostPort(connect, "8081"), Key, key}
	if server.Scheme != "https" {
		if port == "" {
			port = "80"
		}
		return fill(files, append(common, Weir, net.JoinHostPort(connect, port), weirInVCL, inVCL(connect, port))), nil
	}
	if net.ParseIP(name) != nil {
		return nil, fmt.Errorf("the address %s has no name: over HTTPS, gateways need one to verify the certificate", server)
	}
	if port == "" {
		port = Port
	}
	if authorities == "" {
		authorities = Authorities
	}
	for _, change := range changes {
		for i := range files {
			files[i].Content = strings.Replace(files[i].Content, change[0], change[1], 1)
		}
	}
	return fill(append(files, further...), append(common, Host+":"+Port, net.JoinHostPort(connect, port), Host, name,
		Authorities, authorities)), nil
}

// weirInVCL is the address of Weir in the language of Varnish.
var weirInVCL = inVCL("127.0.0.1", "8080")

func inVCL(host, port string) string {
	return fmt.Sprintf("    .host = %q;\n    .port = %q;\n", host, port)
}

// fill replaces values in files: each one is followed by its replacement.
func fill(files []File, values []string) []File {
	replacer := strings.NewReplacer(values...)
	for i := range files {
		files[i].Content = replacer.Replace(files[i].Content)
	}
	return files
}
