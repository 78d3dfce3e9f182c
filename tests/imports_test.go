package tests

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
)

// An importRule says which packages may import a package. Names are folders of this module or
// import paths of other modules, and each includes all packages below it.
type importRule struct {
	imported string
	by       []string // packages that may, in code that is shipped
	tests    bool     // whether all tests may, too
	why      string
}

// Imports run one way: cmd/server; api and dashboard; tenants, usage and recent; check; engine;
// limit.
var importRules = []importRule{
	{"tests", nil, false, "it starts the program, which no part of the program may do"},
	{"cmd", nil, false, "a command is the end of the program: no package uses it"},
	{"internal/api", []string{"cmd/server", "internal/api"}, false, "HTTP is the top layer; the dashboard uses the same stores, not the API"},
	{"internal/dashboard", []string{"cmd/server", "internal/dashboard"}, false, "the API must not depend on pages"},
	{"internal/tenants", []string{"cmd/server", "internal/api", "internal/billing", "internal/dashboard", "internal/notify", "internal/snapshot", "internal/tenants"}, false, "a check is decided without Postgres, so package check must not use it"},
	{"internal/usage", []string{"cmd/server", "internal/api", "internal/dashboard", "internal/tenants", "internal/usage"}, true, "it counts decisions; only packages that store or show the counts need them"},
	{"internal/recent", []string{"cmd/server", "internal/api", "internal/dashboard", "internal/recent"}, true, "recent decisions are for people: the dashboard and the API show them"},
	{"internal/peers", []string{"cmd/server", "internal/recent", "internal/check/checktest", "internal/peers"}, true, "an engine gets its share from outside; only cmd/server and messages between instances know the other instances"},
	{"internal/check", []string{"cmd/server", "cmd/weir", "internal/api", "internal/dashboard", "internal/tenants", "internal/usage", "internal/recent", "internal/snapshot", "internal/engine/enginetest/conformance", "internal/check"}, true, "engines decide calls and must not know policies, requests or decisions; the conformance command sends checks as applications do, and weir replays logs"},
	{"internal/engine/redis", []string{"cmd/server", "internal/engine/redis", "internal/engine/enginetest"}, true, "all layers above use an engine.Engine; only cmd/server knows that it is Redis"},
	{"internal/engine", []string{"cmd/server", "internal/api", "internal/dashboard", "internal/tenants", "internal/check", "internal/peers", "internal/throttle", "internal/engine"}, true, "arithmetic must not depend on where a state is stored"},
	{"internal/limit", []string{"cmd", "internal"}, true, "the bottom layer: all packages may use it"},
	{"internal/route", []string{"cmd/server", "internal/api", "internal/check", "internal/dashboard", "internal/tenants", "internal/importer", "internal/route"}, true, "it is pure: it uses neither HTTP nor SQL"},
	{"internal/importer", []string{"cmd/server"}, true, "it converts files into documents, and needs no running service"},
	{"internal/budget", []string{"cmd/server", "internal/api", "internal/once", "internal/leases"}, true, "it counts bytes of records, and does not depend on what is in them"},
	{"internal/paced", []string{"internal/budget", "internal/engine/redis"}, false, "only background work has a pace"},
	{"internal/waterlevel", []string{"internal/budget", "internal/engine/redis"}, false, "only what the memory of Redis bounds has a level"},
	{"internal/once", []string{"cmd/server", "internal/api"}, true, "it stores responses, and does not depend on checks"},
	{"internal/leases", []string{"cmd/server", "internal/api"}, true, "it stores records, and does not depend on checks"},
	{"internal/records", []string{"cmd/server", "internal/api", "internal/leases", "internal/once"}, true, "only records have these turns; a check without them waits for none"},
	{"internal/overload", []string{"cmd/server", "internal/api"}, true, "only HTTP refuses requests; the waits come as functions"},
	{"internal/conns", []string{"cmd/server"}, false, "it bounds the connections of the process, before any layer has them"},
	{"internal/h2", []string{"internal/api"}, true, "it is a transport, which knows neither calls nor decisions"},
	{"internal/places", []string{"cmd/server", "internal/api", "internal/billing", "internal/check", "internal/dashboard", "internal/h2", "internal/mail", "internal/notify", "internal/once", "internal/recent", "internal/records", "internal/tenants"}, false, "only requests, and tasks that wait for others, have places; a decision waits for none"},
	{"internal/seal", []string{"cmd/server", "internal/snapshot", "internal/tenants", "internal/seal", "internal/once", "internal/leases", "internal/recent"}, true, "secrets are encrypted where they are stored or sent; no other package needs a key"},
	{"internal/subscription", []string{"internal/api", "internal/tenants", "internal/billing", "internal/subscription"}, true, "only billing and its store need the events of providers"},
	{"internal/billing", []string{"cmd/server", "internal/api", "internal/dashboard", "internal/billing"}, false, "it works through the store, and the store must not know who calls it"},
	{"internal/notify", []string{"cmd/server", "internal/notify"}, false, "notifications reach it through the store, so no other package needs it"},
	{"internal/snapshot", []string{"cmd/server", "internal/snapshot"}, false, "only a start without Postgres reads it"},
	{"internal/mail", []string{"cmd/server", "internal/dashboard", "internal/mail"}, false, "the dashboard writes mails; the API uses a function that it gets"},
	{"internal/accesslog", []string{"internal/api", "internal/dashboard"}, false, "only requests that people and programs send have lines"},
	{"internal/throttle", []string{"internal/api", "internal/dashboard", "internal/tenants"}, true, "it limits what people and programs try, and no check waits for it"},
	{"internal/origin", []string{"cmd/server", "internal/api", "internal/conns", "internal/dashboard", "internal/h2", "internal/tenants"}, false, "it reads HTTP requests, which no lower layer knows (tenants counts by the network of a client)"},
	{"migrations", []string{"cmd/server", "internal/tenants/tenantstest", "migrations"}, false, "only the server and test databases apply the schema"},
	{"web", []string{"internal/dashboard", "internal/api"}, false, "assets belong to pages; the API has one, its reference at /docs"},
	{"internal/testenv", []string{"internal/testenv", "internal/tenants/tenantstest", "internal/engine/enginetest"}, true, "it starts servers, which no shipped code may do"},
	{"internal/tenants/tenantstest", []string{"internal/tenants/tenantstest"}, true, "test databases are for tests"},
	{"internal/engine/enginetest", []string{"internal/engine/enginetest"}, true, "the suite of engines is for tests and for the commands beside it"},

	{"github.com/jackc/pgx", []string{"internal/tenants", "migrations"}, true, "only tenants queries Postgres, so row security is set up in one place"},
	{"database/sql", []string{"internal/tenants", "migrations"}, true, "only tenants queries Postgres, so row security is set up in one place"},
	{"github.com/golang-migrate/migrate", []string{"migrations"}, true, "one package updates the schema"},
	{"github.com/redis/go-redis", []string{"internal/budget", "internal/engine/redis", "internal/engine/enginetest", "internal/leases", "internal/once", "internal/peers", "internal/recent", "internal/testenv", "cmd/server"}, true, "a check reaches Redis through engine/redis alone, so no deadline and no breaker can be bypassed; peers and recent send messages between instances"},
	{"github.com/go-chi/chi", []string{"internal/api", "internal/dashboard", "cmd/server"}, true, "routing belongs to HTTP; cmd/server combines the two"},
	{"github.com/a-h/templ", []string{"internal/dashboard"}, false, "one package writes HTML"},
	{"google.golang.org/grpc", []string{"internal/api"}, false, "gRPC is a transport, as HTTP is"},
	{"github.com/envoyproxy/go-control-plane", []string{"internal/api"}, false, "one package communicates with gateways"},
	{"charm.land/bubbletea", []string{"cmd/weir"}, true, "only the command draws on a terminal"},
	{"github.com/alecthomas/kong", []string{"cmd/server", "cmd/weir"}, true, "one package reads the settings and passes them as values"},
	{"github.com/stripe/stripe-go", []string{"internal/subscription"}, true, "one package communicates with Stripe"},
	{"github.com/standard-webhooks/standard-webhooks", []string{"internal/notify", "internal/subscription"}, true, "signatures are verified in one place, and made in one"},
	{"code.dny.dev/ssrf", []string{"internal/notify"}, false, "one package connects to addresses that tenants choose"},
	{"github.com/wneessen/go-mail", []string{"internal/mail"}, false, "one package communicates with mail servers"},
	{"net/http", []string{"cmd/server", "cmd/weir", "internal/api", "internal/billing", "internal/dashboard", "internal/h2", "internal/notify", "internal/origin", "internal/subscription", "internal/tenants", "web"}, true, "a decision does not depend on how it was asked for (tenants keeps answers for Idempotency-Key)"},
	{"github.com/stretchr/testify", []string{"internal/testenv", "internal/tenants/tenantstest", "internal/engine/enginetest", "internal/check/checktest"}, true, "assertions end the program: they are for tests"},
	{"testing", []string{"internal/testenv", "internal/tenants/tenantstest", "internal/engine/enginetest", "internal/check/checktest"}, true, "shipped code does not know that it is tested"},
	{"unsafe", nil, false, "no code here needs it"},
	{"github.com/alicebob/miniredis", nil, false, "it runs another Lua and another clock: tests use the real Redis"},
}

// A package of a lower layer must not import one of a higher layer.
func TestImportsRunOneWay(t *testing.T) {
	seen := map[string]bool{}
	forEachGoFile(t, func(file string, imports []string) {
		folder := path.Dir(file)
		isTest := strings.HasSuffix(file, "_test.go") || within(folder, "tests")
		for _, imported := range imports {
			for _, rule := range importRules {
				if !within(imported, rule.imported) {
					continue
				}
				seen[rule.imported] = true
				if !rule.allows(folder, isTest) {
					t.Errorf("%s imports %s: %s", file, imported, rule.why)
				}
			}
		}
	})
	// A rule that matches no import may be misspelled, so check the most important ones.
	for _, must := range []string{"internal/check", "internal/tenants", "github.com/jackc/pgx", "github.com/redis/go-redis", "net/http"} {
		require.True(t, seen[must], "nothing imports %s: the rule may be misspelled", must)
	}
}

func (r importRule) allows(folder string, isTest bool) bool {
	if isTest && (r.tests || within(folder, "tests")) {
		return true
	}
	for _, by := range r.by {
		if within(folder, by) {
			return true
		}
	}
	// Tests in the directory of the package may import it.
	return isTest && within(folder, r.imported)
}

func within(name, parent string) bool {
	return name == parent || strings.HasPrefix(name, parent+"/")
}

// forEachGoFile calls visit with each file's path and its imports: the directory for packages of
// this module, the path for others.
func forEachGoFile(t *testing.T, visit func(file string, imports []string)) {
	root := testenv.Root()
	files := 0
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if base := entry.Name(); name != root && (strings.HasPrefix(base, ".") || base == "node_modules" || base == "testdata" || relative == "bench" || relative == "sdk/go" || relative == "terraform") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		files++
		parsed, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		var imports []string
		for _, spec := range parsed.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			imports = append(imports, strings.TrimPrefix(imported, "weir/"))
		}
		visit(filepath.ToSlash(relative), imports)
		return nil
	})
	require.NoError(t, err)
	require.NotZero(t, files)
}
