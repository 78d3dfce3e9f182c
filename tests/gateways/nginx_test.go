package gateways

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// authenticated is the page's nginx with authentication of its own in front of the application: one
// account, ann with the password pw, and one path that nobody may open. ann's name is the subject.
func authenticated(r recipe, passwords string) *recipe {
	arrange := r.arrange
	r.arrange = func(g *gateway, files map[string]string) []string {
		files["passwords"] = "ann:{PLAIN}pw\n"
		const before = "        auth_request /_weir_check;\n"
		files["weir.conf"] = strings.Replace(files["weir.conf"], before, `        auth_basic "customers";
        auth_basic_user_file `+filepath.Join(g.dir, passwords)+`;
        if ($uri = "/secret") { return 403; }
`+before, 1)
		files["weir.conf"] = strings.ReplaceAll(files["weir.conf"], "$http_x_user", "$remote_user")
		return arrange(g, files)
	}
	return &r
}

// Errors of nginx itself stay as they are: nobody is let in because Weir was not asked.
func TestNginxKeepsItsOwnErrors(t *testing.T) {
	w := newWorld(t)
	page := *recipes[slices.IndexFunc(recipes, func(r *recipe) bool { return r.name == "nginx" })]
	for _, failOpen := range []bool{true, false} {
		g := startGateway(t, w, authenticated(page, "passwords"), failOpen, true)
		c := customer(t)
		ask := func(path, password string) answer {
			request, err := http.NewRequest(http.MethodGet, "http://"+g.address+path, nil)
			require.NoError(t, err)
			request.SetBasicAuth("ann", password)
			return g.send(t, c, http.MethodGet, path, "", "Authorization", request.Header.Get("Authorization"))
		}
		got := g.send(t, c, http.MethodGet, "/", "")
		require.Equal(t, http.StatusUnauthorized, got.status)
		require.Contains(t, got.header.Get("WWW-Authenticate"), "customers")
		require.Equal(t, http.StatusUnauthorized, ask("/", "no").status)
		require.Equal(t, http.StatusForbidden, ask("/secret", "pw").status)
		require.Empty(t, g.app.take(), "the application was not asked")
		if failOpen {
			require.Equal(t, http.StatusOK, ask("/", "pw").status)
			require.Len(t, g.app.take(), 1)
		}

		// The passwords cannot be read.
		broken := startGateway(t, w, authenticated(page, "folder"), failOpen, true)
		require.NoError(t, os.Mkdir(filepath.Join(broken.dir, "folder"), 0o700))
		got = broken.send(t, c, http.MethodGet, "/", "", "Authorization", "Basic YW5uOnB3")
		require.GreaterOrEqual(t, got.status, 400)
		require.Empty(t, broken.app.take(), "the application was not asked")
	}
}
