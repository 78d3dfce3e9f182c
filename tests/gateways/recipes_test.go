package gateways

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
)

// A recipe is what the tests need to know about a gateway, apart from its page.
type recipe struct {
	name        string
	doc         string            // name of the page, if it is different
	hostAndPort bool              // the page has host and port separately
	listen      map[string]string // address on the page, and address in a test
	stunnel     map[string]string // the same for stunnel, with which the gateway uses HTTPS
	paths       map[string]string // path on the page, and file in a test
	patient     map[string]string // timeout on the page, and longer timeout
	arrange     func(g *gateway, files map[string]string) (command []string)
	built       bool // not from a package: `make gateways` builds it
	// The gateway listens before it has read its configuration, and answers 404 until then.
	listensEarly bool
	route        bool     // it uses the route of the page
	routeToo     bool     // the page has a change to use a route
	user         bool     // it counts the user whom the gateway has authenticated
	secured      *secured // it asks Weir over HTTPS

	ownBody     bool // the gateway writes the body of a denial itself
	noHeaders   bool // headers of allowed responses do not reach the customer
	noBodies    bool // requests with a body are refused
	connections int  // maximum number of connections to Weir for one customer

	more func(t *testing.T, w *world, r *recipe) // tests of this gateway only
}

func (r *recipe) page() string {
	if r.doc != "" {
		return r.doc
	}
	return r.name
}

var recipes = withRoutes([]*recipe{
	{
		name: "nginx", routeToo: true, listen: map[string]string{"listen 8000": "listen ADDRESS"}, ownBody: true, connections: 1,
		patient: map[string]string{"200ms": "60s"},
		arrange: arrangeNginx(""),
	},
	{
		name: "nginx-njs", routeToo: true, listen: map[string]string{"listen 8000": "listen ADDRESS"}, connections: 1,
		patient: map[string]string{"200ms": "60s"},
		paths:   map[string]string{"/etc/nginx/weir.js": "weir.js"},
		arrange: arrangeNginx("load_module /usr/lib/nginx/modules/ngx_http_js_module.so;"),
	},
	{
		name: "nginx-lua", routeToo: true, listen: map[string]string{"listen 8000": "listen ADDRESS"}, connections: 1,
		patient: map[string]string{"200ms": "60s"},
		arrange: arrangeNginx("load_module /usr/lib/nginx/modules/ndk_http_module.so;\nload_module /usr/lib/nginx/modules/ngx_http_lua_module.so;"),
	},
	{
		name: "haproxy", routeToo: true, listen: map[string]string{"bind :8000": "bind ADDRESS", "abns@weir": "abns@weir-PORT"}, connections: 2,
		patient: map[string]string{"timeout connect 200ms": "timeout connect 60s", "timeout server 200ms": "timeout server 60s",
			"timeout = 1000": "timeout = 100000", "timeout connect 5s": "timeout connect 60s", "timeout server 30s": "timeout server 60s",
			"timeout client 30s": "timeout client 60s"},
		paths:   map[string]string{"/etc/haproxy/weir.lua": "weir.lua"},
		arrange: arrangeHAProxy,
	},
	{
		name: "caddy", routeToo: true, listen: map[string]string{":8000 {": ":PORT {\n\tbind 127.0.0.1"}, connections: 1,
		patient: map[string]string{"200ms": "60s"},
		arrange: arrangeCaddy("caddy"),
		more:    caddyErrors,
	},
	{
		name: "caddy-2.11", doc: "caddy", listen: map[string]string{":8000 {": ":PORT {\n\tbind 127.0.0.1"}, connections: 1, built: true,
		patient: map[string]string{"200ms": "60s"},
		arrange: arrangeCaddy("caddy-2.11"),
		more:    caddyErrors,
	},
	{
		name: "traefik", listen: map[string]string{":8000": "ADDRESS", "127.0.0.1:8079": "INNER"}, connections: 2, built: true,
		route: true, noHeaders: true, listensEarly: true,
		patient: map[string]string{"200ms": "60s"},
		paths:   map[string]string{"/etc/traefik/weir.yml": "weir.yml"},
		arrange: arrangeTraefik,
	},
	{
		name: "apache", listen: map[string]string{"Listen 8000": "Listen ADDRESS", "*:8000": "ADDRESS"}, connections: 8,
		stunnel: map[string]string{"127.0.0.1:8079": "INNER"},
		patient: map[string]string{"TIMEOUT = 0.2": "TIMEOUT = 60"},
		paths:   map[string]string{"/etc/apache2/weir.lua": "weir.lua"},
		arrange: arrangeApache,
	},
	{
		name: "varnish", hostAndPort: true, noBodies: true, connections: 2,
		stunnel: map[string]string{"127.0.0.1:8079": "INNER", `"8079"`: `"INNERPORT"`},
		patient: map[string]string{"200ms": "60s"},
		arrange: arrangeVarnish,
	},
})

// withRoutes adds recipes that use a route, for pages that describe it.
func withRoutes(all []*recipe) []*recipe {
	for _, r := range all {
		if r.routeToo {
			changed := *r
			changed.name, changed.doc, changed.route = r.name+"-route", r.page(), true
			all = append(all, &changed)
		}
	}
	return all
}

// arrangeNginx puts the page's file where nginx.conf includes it, as on Debian.
func arrangeNginx(modules string) func(g *gateway, files map[string]string) []string {
	return func(g *gateway, files map[string]string) []string {
		files["nginx.conf"] = nginxConf(modules, filepath.Join(g.dir, "weir.conf"), `
    server {
        listen `+g.plain+`;
        location / { proxy_pass http://app; }
    }`)
		return []string{"nginx", "-p", g.dir, "-e", "stderr", "-g", "daemon off;", "-c", filepath.Join(g.dir, "nginx.conf")}
	}
}

// nginxConf keeps all files of nginx in its own directory.
func nginxConf(modules, include, servers string) string {
	return modules + `
worker_processes 1;
pid nginx.pid;
error_log stderr warn;
events {}
http {
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    include ` + include + `;` + servers + `
}
`
}

func arrangeHAProxy(g *gateway, files map[string]string) []string {
	files["haproxy.cfg"] += `
listen plain
    mode http
    bind ` + g.plain + `
    timeout client 60s
    timeout connect 60s
    timeout server 60s
    server app ` + g.app.address + `
`
	return []string{"haproxy", "-db", "-f", filepath.Join(g.dir, "haproxy.cfg")}
}

func arrangeCaddy(program string) func(g *gateway, files map[string]string) []string {
	return func(g *gateway, files map[string]string) []string {
		_, port, _ := net.SplitHostPort(g.plain)
		// Only options that the page does not need are added.
		files["Caddyfile"] = strings.Replace(files["Caddyfile"], "{\n", "{\n\tadmin off\n\tauto_https off\n", 1) +
			"\n:" + port + " {\n\tbind 127.0.0.1\n\treverse_proxy " + g.app.address + "\n}\n"
		return []string{program, "run", "--adapter", "caddyfile", "--config", filepath.Join(g.dir, "Caddyfile")}
	}
}

// arrangeTraefik adds a route without Weir, and turns off Traefik's check for new versions.
func arrangeTraefik(g *gateway, files map[string]string) []string {
	files["traefik.yml"] = strings.Replace(files["traefik.yml"], "entryPoints:\n", "entryPoints:\n  plain:\n    address: "+g.plain+"\n", 1) +
		"\nglobal:\n  checkNewVersion: false\n  sendAnonymousUsage: false\n"
	files["weir.yml"] = strings.Replace(files["weir.yml"], "  routers:\n",
		"  routers:\n    plain:\n      entryPoints: [plain]\n      rule: PathPrefix(`/`)\n      service: app\n", 1)
	return []string{"traefik", "--configFile=" + filepath.Join(g.dir, "traefik.yml")}
}

func arrangeApache(g *gateway, files map[string]string) []string {
	files["apache2.conf"] = `
ServerRoot ` + g.dir + `
ServerName gateway.test
PidFile apache2.pid
DefaultRuntimeDir ` + g.dir + `
ErrorLog error.log
LogLevel warn
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule auth_basic_module /usr/lib/apache2/modules/mod_auth_basic.so
LoadModule authn_core_module /usr/lib/apache2/modules/mod_authn_core.so
LoadModule authn_file_module /usr/lib/apache2/modules/mod_authn_file.so
LoadModule authz_user_module /usr/lib/apache2/modules/mod_authz_user.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
LoadModule env_module /usr/lib/apache2/modules/mod_env.so
LoadModule headers_module /usr/lib/apache2/modules/mod_headers.so
LoadModule lua_module /usr/lib/apache2/modules/mod_lua.so
LoadModule proxy_module /usr/lib/apache2/modules/mod_proxy.so
LoadModule proxy_http_module /usr/lib/apache2/modules/mod_proxy_http.so
StartServers 1
ServerLimit 1
ThreadsPerChild 8
MaxRequestWorkers 8
Listen ` + g.plain + `
Include ` + filepath.Join(g.dir, "weir.conf") + `
<VirtualHost ` + g.plain + `>
    ProxyPass / http://` + g.app.address + `/
</VirtualHost>
`
	return []string{"apache2", "-D", "FOREGROUND", "-d", g.dir, "-f", filepath.Join(g.dir, "apache2.conf")}
}

// arrangeVarnish adds a route without Weir for requests to the second address.
func arrangeVarnish(g *gateway, files map[string]string) []string {
	files["default.vcl"] = strings.Replace(files["default.vcl"], "sub vcl_recv {",
		"sub vcl_recv {\n    if (local.socket == \"plain\") {\n        set req.backend_hint = app;\n        return (pass);\n    }", 1)
	return []string{"varnishd", "-F", "-j", "none", "-n", filepath.Join(g.dir, "work"), "-a", g.address, "-a", "plain=" + g.plain,
		"-f", filepath.Join(g.dir, "default.vcl"), "-s", "malloc,32m", "-T", "none", "-p", "thread_pool_min=10",
		"-p", "connect_timeout=60"}
}
