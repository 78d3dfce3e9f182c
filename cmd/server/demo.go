package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"weir/internal/dashboard"
	"weir/internal/mail"
	"weir/internal/tenants"
)

type demoCommand struct {
	Dir   string `default:".dev" help:"Where to write demo.env and, with --serve, a certificate for localhost."`
	Serve bool   `help:"Then serve over HTTP and HTTPS, and print how to use it."`
}

// The variables of demo.env.
const (
	demoURL         = "WEIR_URL"
	demoHTTPSURL    = "WEIR_HTTPS_URL"
	demoGRPCAddr    = "WEIR_GRPC_ADDR"
	demoKey         = "WEIR_KEY"
	demoOperatorKey = "WEIR_OPERATOR_KEY"
	demoEmail       = "WEIR_EMAIL"
	demoPassword    = "WEIR_PASSWORD"

	demoOperatorEmail    = "WEIR_OPERATOR_EMAIL"
	demoOperatorPassword = "WEIR_OPERATOR_PASSWORD"
)

var demoVariables = []string{demoURL, demoHTTPSURL, demoGRPCAddr, demoKey, demoOperatorKey, demoEmail, demoPassword, demoOperatorEmail, demoOperatorPassword}

const (
	demoSlug   = "demo"
	demoMember = "demo@weir.example"
	// demoColleague is appended to the role in the emails of the other members, who have the same
	// password.
	demoColleague = "@weir.example"
	demoOperator  = "operator" + demoColleague
)

// Run creates the demo tenant, or completes it. It does not change existing objects, and keeps the
// keys of an earlier run while they are valid.
func (d demoCommand) Run(ctx context.Context, cfg *Config, log *slog.Logger) error {
	if err := cfg.requireStores(); err != nil {
		return err
	}
	if err := os.MkdirAll(d.Dir, 0o711); err != nil {
		return err
	}
	if cfg.Migrate {
		if err := migrateUp(ctx, cfg, log); err != nil {
			return err
		}
	}
	if err := d.ensureEncryptionKey(cfg); err != nil {
		return err
	}
	store, err := openStore(ctx, cfg, log, commandWait)
	if err != nil {
		return err
	}
	defer store.Close()
	file := filepath.Join(d.Dir, "demo.env")
	env := readEnv(file)
	if err := seedWithRetries(ctx, store, env); err != nil {
		return fmt.Errorf("create the demo tenant: %w", err)
	}
	env[demoURL], env[demoHTTPSURL] = configuredURL("http", cfg.HTTPAddr), configuredURL("https", cfg.HTTPSAddr)
	env[demoGRPCAddr] = ""
	if serves(cfg.GRPCAddr) {
		env[demoGRPCAddr] = cfg.GRPCAddr
	}
	if !d.Serve {
		return writeEnv(file, env)
	}
	cert, err := d.configure(cfg)
	if err != nil {
		return err
	}
	log = cfg.logger() // at the level that was just chosen
	started := func(f *front) {
		env[demoURL], env[demoHTTPSURL] = f.url("WEIR_HTTP_ADDR"), f.url("WEIR_HTTPS_ADDR")
		if env[demoGRPCAddr] = ""; f.calls != nil {
			env[demoGRPCAddr] = f.calls.listener.Addr().String()
		}
		if err := writeEnv(file, env); err != nil {
			log.Error("demo.env was not written", "error", err)
		}
		if err := makeTraffic(ctx, f.url("WEIR_HTTP_ADDR"), env[demoKey]); err != nil {
			log.Error("the demo's checks failed", "error", err)
		}
		welcome(os.Stdout, env, cert, file)
	}
	return serve(ctx, cfg, log, started)
}

// configure sets what a demo needs and a server in production does not, unless it is already set:
// HTTPS with a generated certificate, gRPC, no drain time, open sign-up, and mails that a page
// shows. It returns the file of the authority that signed the certificate, or "" if the certificate
// was configured.
func (d demoCommand) configure(cfg *Config) (authority string, err error) {
	if os.Getenv("WEIR_DRAIN") == "" {
		cfg.Drain = 0
	}
	if os.Getenv("WEIR_LOG_LEVEL") == "" {
		cfg.LogLevel = "warn"
	}
	if os.Getenv("WEIR_SIGNUP") == "" {
		cfg.Signup = string(dashboard.SignupOpen)
	}
	cfg.box = &mail.Box{}
	// The demo's passwords and mails are not secret, so it listens on loopback only.
	if os.Getenv("WEIR_HTTP_ADDR") == "" {
		cfg.HTTPAddr = "127.0.0.1:8080"
	}
	if cfg.HTTPSAddr == "" {
		cfg.HTTPSAddr = "127.0.0.1:8443"
	}
	if cfg.GRPCAddr == "" {
		cfg.GRPCAddr = "127.0.0.1:8081"
	}
	if cfg.TLSCert != "" || cfg.TLSKey != "" || !serves(cfg.HTTPSAddr) {
		return "", nil
	}
	cert, err := makeLocalCertificate(filepath.Join(d.Dir, "tls"), time.Now())
	cfg.TLSCert, cfg.TLSKey = cert.certFile, cert.keyFile
	return cert.caFile, err
}

// configuredURL returns the URL of a server with this address, or "" if it is off.
func configuredURL(scheme, addr string) string {
	if !serves(addr) {
		return ""
	}
	if strings.HasPrefix(addr, ":") {
		addr = "localhost" + addr
	}
	return scheme + "://" + addr
}

// seedTries is the number of attempts if Postgres on a busy machine does not answer in time.
// Existing objects are kept.
const seedTries = 10

func seedWithRetries(ctx context.Context, store *tenants.Store, env map[string]string) error {
	for try := 1; ; try++ {
		err := seed(ctx, store, env)
		if !errors.Is(err, tenants.ErrUnavailable) || try == seedTries {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// seed creates missing objects of the demo, and sets the keys, the email and the password in env.
func seed(ctx context.Context, store *tenants.Store, env map[string]string) error {
	platform, err := store.EnsurePlatform(ctx)
	if err != nil {
		return err
	}
	if err := store.ProposeTiers(ctx, platform); err != nil {
		return err
	}
	authenticator := tenants.NewAuthenticator(store)
	tenant, err := seedTenant(ctx, store, platform)
	if err != nil {
		return err
	}
	actor := tenants.AsSystem(tenant.ID, "demo")
	if a, err := authenticator.Authenticate(ctx, env[demoKey]); err != nil || a.TenantID() != tenant.ID {
		_, key, err := store.CreateKey(ctx, actor, tenants.NewAPIKey{Name: "demo", Scopes: tenants.AllScopes})
		if err != nil {
			return err
		}
		env[demoKey] = key.Secret()
	}
	if a, err := authenticator.Authenticate(ctx, env[demoOperatorKey]); err != nil || !a.Operator() {
		_, key, err := store.CreateOperatorKey(ctx, "demo")
		if err != nil {
			return err
		}
		env[demoOperatorKey] = key.Secret()
	}
	return seedMembers(ctx, store, actor, env)
}

// demoTier is wide enough for every experiment, and its quotas let checks pass.
const demoTier = "scale"

// seedTier gives the demo's tenant a tier, so that its pages show quotas, unless the operator has
// deleted the tier.
func seedTier(ctx context.Context, store *tenants.Store, platform tenants.Tenant) error {
	operator := tenants.AsSystem(platform.ID, "demo")
	_, err := store.PlanBySlug(ctx, operator, demoTier)
	if errors.Is(err, tenants.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	_, _, err = store.PutSubject(ctx, operator, tenants.Subject{Subject: demoSlug, Plan: demoTier}, tenants.Match{})
	return err
}

// seedTenant creates the tenant with its rules, plans, routes, subjects, billing and history. If
// the tenant exists, it changes nothing: a deleted rule of the demo stays deleted.
func seedTenant(ctx context.Context, store *tenants.Store, platform tenants.Tenant) (tenants.Tenant, error) {
	operator := tenants.AsOperator("demo")
	tenant, err := store.TenantBySlugOrID(ctx, operator, demoSlug)
	if !errors.Is(err, tenants.ErrNotFound) {
		return tenant, err
	}
	tenant, first, _, err := store.CreateTenant(ctx, operator, tenants.NewTenant{Slug: demoSlug, Name: "Demo Inc."})
	if err != nil {
		return tenant, err
	}
	actor := tenants.AsSystem(tenant.ID, "demo")
	fill := func() error {
		// Nobody has the secret of this key.
		if err := store.RevokeKey(ctx, actor, first.ID, tenants.Match{}); err != nil {
			return err
		}
		if err := seedTier(ctx, store, platform); err != nil {
			return err
		}
		if err := seedPolicy(ctx, store, actor); err != nil {
			return err
		}
		if err := seedBilling(ctx, store, actor, time.Now()); err != nil {
			return err
		}
		return seedHistory(ctx, store, tenant.ID, time.Now())
	}
	if err := fill(); err != nil {
		return tenant, errors.Join(err, store.DeleteTenant(ctx, operator, demoSlug, tenants.Match{}))
	}
	return tenant, nil
}

func seedPolicy(ctx context.Context, store *tenants.Store, actor tenants.Actor) error {
	for _, rule := range demoRules() {
		if _, err := store.CreateRule(ctx, actor, rule); err != nil {
			return fmt.Errorf("rule %s: %w", rule.Slug, err)
		}
	}
	for _, plan := range demoPlans() {
		if _, err := store.CreatePlan(ctx, actor, plan); err != nil {
			return fmt.Errorf("plan %s: %w", plan.Slug, err)
		}
	}
	for _, r := range demoRoutes() {
		if _, err := store.CreateRoute(ctx, actor, r); err != nil {
			return fmt.Errorf("route %s: %w", r.Slug, err)
		}
	}
	for _, subject := range demoSubjects() {
		if _, _, err := store.PutSubject(ctx, actor, subject, tenants.Match{}); err != nil {
			return fmt.Errorf("subject %s: %w", subject.Subject, err)
		}
		for _, override := range subject.Overrides {
			if _, _, err := store.PutOverride(ctx, actor, subject.Subject, override, tenants.Match{}); err != nil {
				return fmt.Errorf("override of %s: %w", subject.Subject, err)
			}
		}
	}
	return nil
}

// seedMembers creates the demo's members, one of each role and the operator. If the password in env
// is not the owner's, it sets a new one for all of them.
func seedMembers(ctx context.Context, store *tenants.Store, actor tenants.Actor, env map[string]string) error {
	env[demoEmail], env[demoOperatorEmail] = demoMember, demoOperator
	defer func() { env[demoOperatorPassword] = env[demoPassword] }()
	if env[demoPassword] != "" {
		if _, err := store.VerifyPassword(ctx, demoMember, env[demoPassword]); err == nil {
			return nil
		}
	}
	env[demoPassword] = rand.Text()
	if _, err := store.CreateMember(ctx, actor, demoMember, env[demoPassword], tenants.Owner); err != nil {
		return err
	}
	for _, role := range []tenants.Role{tenants.Admin, tenants.Editor, tenants.Support, tenants.Viewer} {
		if _, err := store.CreateMember(ctx, actor, string(role)+demoColleague, env[demoPassword], role); err != nil {
			return err
		}
	}
	platform, err := store.EnsurePlatform(ctx)
	if err != nil {
		return err
	}
	_, err = store.CreateMember(ctx, tenants.AsSystem(platform.ID, "demo"), demoOperator, env[demoPassword], tenants.Owner)
	return err
}

// readEnv reads a file of lines NAME=value. A missing file is empty.
func readEnv(file string) map[string]string {
	env := map[string]string{}
	content, err := os.ReadFile(file)
	if err != nil {
		return env
	}
	for line := range strings.Lines(string(content)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			env[name] = strings.Trim(value, "'")
		}
	}
	return env
}

// writeEnv writes the demo's variables for a shell, readable only by the owner of the file.
func writeEnv(file string, env map[string]string) error {
	var b strings.Builder
	for _, name := range demoVariables {
		fmt.Fprintf(&b, "%s='%s'\n", name, env[name]) // no value contains a quote
	}
	if err := os.WriteFile(file+".new", []byte(b.String()), 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// welcome prints how to try the service. The curl commands work as printed.
func welcome(w io.Writer, env map[string]string, authority, file string) {
	request := fmt.Sprintf(`/v1/check -H 'Authorization: Bearer %s' -H 'Content-Type: application/json' -d '{"subject":"user_42"}'`, env[demoKey])
	fmt.Fprintf(w, "\nWeir is ready.\n\n")
	for _, url := range []string{env[demoURL], env[demoHTTPSURL]} {
		if url != "" {
			fmt.Fprintf(w, "  Dashboard      %s/\n", url)
			fmt.Fprintf(w, "  Demo login     %s  %s\n", env[demoEmail], env[demoPassword])
			fmt.Fprintf(w, "                 admin@, editor@, support@, viewer@weir.example with the same password\n")
			fmt.Fprintf(w, "  Operator login %s  %s\n", env[demoOperatorEmail], env[demoOperatorPassword])
			fmt.Fprintf(w, "  API reference  %s/docs\n", url)
			if env[demoGRPCAddr] != "" {
				fmt.Fprintf(w, "  For Envoy      %s (gRPC)\n", env[demoGRPCAddr])
			}
			break
		}
	}
	fmt.Fprintf(w, "  The same, for  . %s\n\nMay user_42 do something?\n\n", file)
	if env[demoURL] != "" {
		fmt.Fprintf(w, "  curl %s%s\n\n", env[demoURL], request)
	}
	switch {
	case env[demoHTTPSURL] == "":
	case authority == "":
		fmt.Fprintf(w, "  curl %s%s\n\n", env[demoHTTPSURL], request)
	default:
		fmt.Fprintf(w, "  curl --cacert %s %s%s\n\n", absolute(authority), env[demoHTTPSURL], request)
	}
	fmt.Fprintf(w, "Ctrl-C stops everything; the data stays.\n\n")
}

func absolute(file string) string {
	if abs, err := filepath.Abs(file); err == nil {
		return abs
	}
	return file
}
