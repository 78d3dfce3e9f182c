// Package web holds what browsers load: styles, scripts, and what was vendored of others
// (vendor.sh). All of it is a part of the binary, so pages work where there is no other network.
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
	"strings"
	"sync"
)

//go:embed static
var files embed.FS

// Prefix begins the path of every asset.
const Prefix = "/assets/"

// contentTypes are those of the files that are served; others, such as licences, only lie beside
// them.
var contentTypes = map[string]string{
	".css": "text/css; charset=utf-8",
	".js":  "text/javascript; charset=utf-8",
	".svg": "image/svg+xml",
}

// asset is one file, as it is served.
type asset struct {
	contentType string
	plain       []byte
	gzipped     func() []byte // compressed when it is first asked for, and kept
}

type assets struct {
	paths  map[string]string // by name, such as js/docs.js
	byPath map[string]*asset
}

// load hashes the files once, when the first page or asset is asked for: most commands of the
// binary serve none.
var load = sync.OnceValue(func() assets {
	a := assets{paths: map[string]string{}, byPath: map[string]*asset{}}
	err := fs.WalkDir(files, "static", func(file string, entry fs.DirEntry, err error) error {
		extension := path.Ext(file)
		if err != nil || entry.IsDir() || contentTypes[extension] == "" {
			return err
		}
		content, err := files.ReadFile(file)
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(file, "static/")
		sum := sha256.Sum256(content)
		hashed := Prefix + strings.TrimSuffix(name, extension) + "-" + hex.EncodeToString(sum[:8]) + extension
		a.paths[name] = hashed
		a.byPath[hashed] = &asset{contentTypes[extension], content, sync.OnceValue(func() []byte { return compress(content) })}
		return nil
	})
	if err != nil {
		panic("web: embedded files cannot be read: " + err.Error())
	}
	return a
})

// Path returns where an asset is served, by its name below static/, such as js/docs.js. The path
// holds a hash of the content, so it never means anything else. It panics where there is no such
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
	if AcceptsGzip(r) {
		h.Set("Content-Encoding", "gzip")
		body = found.gzipped()
	}
	_, _ = w.Write(body) // the client is gone if this fails
	return true
}

// AcceptsGzip reports whether the client accepts gzip without a weight, as browsers do. A client
// that sends a weight gets the plain file.
func AcceptsGzip(r *http.Request) bool {
	for coding := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		if strings.TrimSpace(coding) == "gzip" {
			return true
		}
	}
	return false
}

func compress(content []byte) []byte {
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
