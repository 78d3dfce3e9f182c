// Package web has the files that browsers load: styles, scripts, icons, and files of other projects
// (vendor.sh). The binary embeds all of them, so pages need no other server.
//
// The path of a file contains a hash of its content, so browsers keep it without asking again.
//
// Example: Path("js/docs.js") returns a path with a hash. Serve answers it with the file,
// compressed if the browser accepts gzip, and lets the browser keep it for a year. After a change
// of the file, pages name another path.
package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"regexp"
	"strings"
	"sync"
)

//go:embed static
var files embed.FS

// Prefix begins the path of every asset.
const Prefix = "/assets/"

// contentTypes are those of the files that are served; other files, such as licences, are only kept
// beside them.
var contentTypes = map[string]string{
	".css":   "text/css; charset=utf-8",
	".js":    "text/javascript; charset=utf-8",
	".svg":   "image/svg+xml",
	".woff2": "font/woff2",
}

// asset is one file, as it is served.
type asset struct {
	contentType string
	plain       []byte
	gzipped     func() []byte // compressed at the first request, then kept; nil for compressed formats
}

type assets struct {
	paths  map[string]string // by name, such as js/docs.js
	byPath map[string]*asset
}

// load hashes the files at the first request for a page or asset: most commands of the binary serve
// none. Style sheets come last, because they name fonts and images by their hashed paths.
var load = sync.OnceValue(func() assets {
	a := assets{paths: map[string]string{}, byPath: map[string]*asset{}}
	for _, styles := range []bool{false, true} {
		err := fs.WalkDir(files, "static", func(file string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || contentTypes[path.Ext(file)] == "" || styles != (path.Ext(file) == ".css") {
				return err
			}
			content, err := files.ReadFile(file)
			if err != nil {
				return err
			}
			if styles {
				content = a.withHashedPaths(content)
			}
			a.add(strings.TrimPrefix(file, "static/"), content)
			return nil
		})
		if err != nil {
			panic("web: cannot read embedded files: " + err.Error())
		}
	}
	return a
})

func (a assets) add(name string, content []byte) {
	extension := path.Ext(name)
	sum := sha256.Sum256(content)
	hashed := Prefix + strings.TrimSuffix(name, extension) + "-" + hex.EncodeToString(sum[:8]) + extension
	served := &asset{contentType: contentTypes[extension], plain: content}
	if extension != ".woff2" { // it is compressed already
		served.gzipped = sync.OnceValue(func() []byte { return Compress(content) })
	}
	a.paths[name], a.byPath[hashed] = hashed, served
}

var assetURL = regexp.MustCompile(`url\("` + Prefix + `([^"]+)"\)`)

// withHashedPaths replaces url("/assets/NAME") in a style sheet by the path where NAME is served.
func (a assets) withHashedPaths(styles []byte) []byte {
	return assetURL.ReplaceAllFunc(styles, func(found []byte) []byte {
		name := string(assetURL.FindSubmatch(found)[1])
		if a.paths[name] == "" {
			panic("web: a style sheet names the missing asset " + name)
		}
		return []byte(`url("` + a.paths[name] + `")`)
	})
}

// Path returns where an asset is served, by its name below static/, such as js/docs.js. The path
// holds a hash of the content, so it never means anything else. It panics if there is no such
// asset.
func Path(name string) string {
	p, found := load().paths[name]
	if !found {
		panic("web: no asset " + name)
	}
	return p
}

// Serve answers a GET or HEAD of an asset's path, to be kept for a year. It reports whether the
// path is one; where it is not, nothing is answered.
func Serve(w http.ResponseWriter, r *http.Request) bool {
	found := load().byPath[r.URL.Path]
	if found == nil {
		return false
	}
	h := w.Header()
	h.Set("Content-Type", found.contentType)
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Vary", "Accept-Encoding")
	body := found.plain
	if found.gzipped != nil && AcceptsGzip(r) {
		h.Set("Content-Encoding", "gzip")
		body = found.gzipped()
	}
	_, _ = w.Write(body) // the client is gone if this fails
	return true
}

// AcceptsGzip reports whether the client names gzip without a weight, as browsers do. A client that
// says more about it gets the plain file.
func AcceptsGzip(r *http.Request) bool {
	for coding := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		if strings.TrimSpace(coding) == "gzip" {
			return true
		}
	}
	return false
}

// Compress returns a page compressed with gzip, to be kept: it compresses slowly and well.
func Compress(content []byte) []byte {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err == nil {
		_, err = z.Write(content)
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil { // a buffer takes everything
		panic("web: " + err.Error())
	}
	return b.Bytes()
}
