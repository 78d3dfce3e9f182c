package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"weir/internal/api"
	"weir/internal/dashboard"
	"weir/internal/limit"
	"weir/internal/mail"
	"weir/internal/notify"
	"weir/internal/origin"
	"weir/internal/seal"
)

// Config has the settings of the operator. Each field is an environment variable, and a flag of the
// same name in lower case. The flag takes precedence. `server --help` prints this list.
type Config struct {
	DatabaseURL        Secret `env:"WEIR_DATABASE_URL" placeholder:"postgres://..." help:"PostgreSQL, as postgres://USER:PASSWORD@HOST:PORT/DATABASE. Required."`
	DatabaseURLFile    string `env:"WEIR_DATABASE_URL_FILE" name:"database-url-file" placeholder:"FILE" help:"File with WEIR_DATABASE_URL. User and password are read again for each new connection."`
	MigrateDatabaseURL Secret `env:"WEIR_MIGRATE_DATABASE_URL" placeholder:"postgres://..." help:"The same database with the login that owns its tables, for migrations. Defaults to WEIR_DATABASE_URL."`
	AllowSuperuser     bool   `env:"WEIR_ALLOW_SUPERUSER" default:"false" help:"Start even if the login of WEIR_DATABASE_URL is a superuser or has BYPASSRLS. Row-level security does not restrict such a login. For evaluation only."`
	DatabaseListenURL  Secret `env:"WEIR_DATABASE_LISTEN_URL" placeholder:"postgres://..." help:"The same database without a pooler, to listen for changes. Defaults to WEIR_DATABASE_URL."`
	Migrate            bool   `env:"WEIR_MIGRATE" default:"true" negatable:"" help:"Apply migrations at startup. On by default."`

	RedisURL     Secret        `env:"WEIR_REDIS_URL" placeholder:"redis://..." help:"Redis or Valkey, as redis://USER:PASSWORD@HOST:PORT/0 (rediss:// with TLS). Required."`
	RedisURLFile string        `env:"WEIR_REDIS_URL_FILE" name:"redis-url-file" placeholder:"FILE" help:"File with WEIR_REDIS_URL. User and password are read again for each new connection."`
	RedisTimeout time.Duration `env:"WEIR_REDIS_TIMEOUT" default:"50ms" help:"How long a check waits for a silent Redis, 5ms to 10s; then each rule's on_unavailable answers. While Redis answers other checks, up to four times as long."`
	Instances    int           `env:"WEIR_INSTANCES" default:"1" help:"Number of instances that share the limits while Redis is unavailable, until they have discovered each other."`

	HTTPAddr     string `env:"WEIR_HTTP_ADDR" name:"http-addr" default:":8080" help:"Address of HTTP, as HOST:PORT; off disables it."`
	HTTPSAddr    string `env:"WEIR_HTTPS_ADDR" name:"https-addr" placeholder:":8443" help:"Address of HTTPS, including HTTP/2. Requires WEIR_TLS_CERT and WEIR_TLS_KEY."`
	TLSCert      string `env:"WEIR_TLS_CERT" name:"tls-cert" placeholder:"FILE" help:"Certificate chain, PEM. Reloaded when the file changes."`
	TLSKey       string `env:"WEIR_TLS_KEY" name:"tls-key" placeholder:"FILE" help:"Key of the certificate, PEM. Reloaded when the file changes."`
	GRPCAddr     string `env:"WEIR_GRPC_ADDR" name:"grpc-addr" placeholder:":8081" help:"Address of Envoy's rate-limit service over gRPC (docs/gateways/envoy.md). Off by default."`
	GRPCTLS      bool   `env:"WEIR_GRPC_TLS" name:"grpc-tls" default:"false" help:"Serve gRPC with TLS, with WEIR_TLS_CERT and WEIR_TLS_KEY. Off by default: clients connect without TLS (h2c)."`
	InternalAddr string `env:"WEIR_INTERNAL_ADDR" default:"127.0.0.1:9090" help:"Address of /metrics and profiles. Keep it private. off disables it."`

	InternalHosts string `env:"WEIR_INTERNAL_HOSTS" placeholder:"HOST,..." help:"Further host names of WEIR_INTERNAL_ADDR, separated by commas. Requests for other names are refused. Addresses and, over a network, names without a dot need not be listed."`

	ProfileContention bool `env:"WEIR_PROFILE_CONTENTION" default:"false" help:"Collect the profiles mutex and block, at the cost of a few percent of the CPU time. Off by default."`

	TrustedProxies string `env:"WEIR_TRUSTED_PROXIES" placeholder:"10.0.0.0/8,..." help:"Networks of the proxies in front of the server, separated by commas. From them, X-Forwarded-For has the client's address. By default, the header is ignored."`

	SMTPURL         Secret `env:"WEIR_SMTP_URL" name:"smtp-url" placeholder:"smtp://..." help:"Mail server, as smtp://USER:PASSWORD@HOST:PORT; smtps:// for TLS from the start. Without it, no mail is sent. Requires WEIR_MAIL_FROM and WEIR_PUBLIC_URL."`
	MailFrom        string `env:"WEIR_MAIL_FROM" placeholder:"weir@example.com" help:"Sender of mails."`
	PublicURL       string `env:"WEIR_PUBLIC_URL" name:"public-url" placeholder:"https://HOST" help:"Public address of the dashboard. Links in mails begin with it."`
	SecurityContact string `env:"WEIR_SECURITY_CONTACT" placeholder:"mailto:security@example.com" help:"Where to report vulnerabilities: mailto:, tel: or https:. It is served at /.well-known/security.txt. By default, nothing is."`

	Signup     string `env:"WEIR_SIGNUP" default:"closed" help:"Who may create a tenant on the dashboard: open (everybody), invite (people with a link of server signup-link) or closed (nobody)."`
	SignupTier string `env:"WEIR_SIGNUP_TIER" placeholder:"PLAN" help:"Tier of tenants that people create by sign-up: a plan of the operator's tenant. By default, its default plan."`

	EncryptionKey Secret `env:"WEIR_ENCRYPTION_KEY" placeholder:"BASE64,..." help:"Keys that encrypt the secrets of billing endpoints and notification endpoints: 32 random bytes in base64 each, separated by commas. The first one encrypts, all decrypt. Without it, neither can be created."`
	StripeURL     string `env:"WEIR_STRIPE_URL" name:"stripe-url" default:"https://api.stripe.com" help:"Address of Stripe's API."`

	NotificationNetworks string `env:"WEIR_NOTIFICATION_NETWORKS" placeholder:"10.1.0.0/16,..." help:"Internal networks that notifications may be sent to, separated by commas. By default, they are sent to public addresses only."`

	Headers string `env:"WEIR_HEADERS" default:"draft,x" help:"Rate-limit headers of a check: a list of draft (RateLimit) and x (X-RateLimit-*), or none."`
	// PolicyMemory is in bytes.
	PolicyMemory byteSize `env:"WEIR_POLICY_MEMORY" default:"512MiB" placeholder:"SIZE" help:"Memory for the rules and subjects of tenants, as 512MiB or 2GiB, 16MiB or more; 0 for no limit. The least recently used tenants are evicted, and loaded again when needed."`

	MaxInFlight int `env:"WEIR_MAX_IN_FLIGHT" default:"10000" help:"Maximum number of concurrent requests, 1 to 1000000; further ones get 503."`
	// MaxConnections is of the public addresses together.
	MaxConnections int `env:"WEIR_MAX_CONNECTIONS" default:"20000" help:"Maximum number of open connections, 10 to 1000000, and at most three quarters of the files that the process may open. Beyond it, an idle one of the site with the most is closed."`
	// MaxConfigAge is 0 for no maximum.
	MaxConfigAge   time.Duration `env:"WEIR_MAX_CONFIG_AGE" default:"0s" help:"While an instance cannot reach Postgres, it answers checks by the configuration in memory. Beyond this age of the configuration, 2s or more, /readyz is 503; 0s for no maximum."`
	SnapshotFile   string        `env:"WEIR_SNAPSHOT_FILE" placeholder:"FILE" help:"File in which this instance keeps a copy of the configuration, to start with while Postgres is unavailable. Requires WEIR_ENCRYPTION_KEY. Off by default."`
	SnapshotMaxAge time.Duration `env:"WEIR_SNAPSHOT_MAX_AGE" default:"24h" help:"Maximum age of that file at a start, 1m or more."`
	SnapshotSize   byteSize      `env:"WEIR_SNAPSHOT_SIZE" default:"256MiB" placeholder:"SIZE" help:"Maximum size of that file, 1MiB or more. The tenants whose keys were used last are in it, large ones only if there is space."`
	Drain          time.Duration `env:"WEIR_DRAIN" default:"5s" help:"How long to continue serving after SIGTERM, 0s to 5m, while load balancers see that /readyz is 503."`
	LogLevel       string        `env:"WEIR_LOG_LEVEL" default:"info" help:"debug, info, warn or error."`

	WriteRate int `env:"WEIR_WRITE_RATE" default:"100" help:"Writes per second that each instance accepts from one tenant, over the admin API and the dashboard, with a burst of ten times as many; up to 1000000, 0 for no limit."`
	ResetRate int `env:"WEIR_RESET_RATE" default:"20" help:"The same for resets of counters."`

	BillingDayEvents int64    `env:"WEIR_BILLING_DAY_EVENTS" default:"500000" help:"Billing events that are stored for a tenant and day (UTC), 1000 to 1000000000; further ones get 429, and billing systems send them again."`
	BillingDaySize   byteSize `env:"WEIR_BILLING_DAY_SIZE" default:"2GiB" placeholder:"SIZE" help:"The same for the bytes of these events, 1MiB or more."`

	TenantCounters int64 `env:"WEIR_TENANT_COUNTERS" default:"10000000" help:"Counters that a tenant may have alive in Redis at the same time, unless its tier has another bound, 1000 to 1000000000; beyond it, new subjects share counters. 0 for no bound."`

	TenantRecords byteSize `env:"WEIR_TENANT_RECORDS" default:"256MiB" placeholder:"SIZE" help:"Bytes of records that a tenant may have alive in Redis at the same time, unless its tier has another bound, 1MiB or more: answers of checks with an Idempotency-Key, and leases; beyond it, both get 429. 0 for no bound."`

	AuditRetention int      `env:"WEIR_AUDIT_RETENTION" default:"0" help:"Days to keep rows of audit trails, up to 36500; 0 keeps them as long as the tenant exists."`
	AuditDaySize   byteSize `env:"WEIR_AUDIT_DAY_SIZE" default:"1GiB" placeholder:"SIZE" help:"Bytes that a tenant's changes may add to its audit trail in a day (UTC), 1MiB or more. Beyond a quarter of it, large rows have digests; beyond it, changes get 429 until the day ends, except for those that revoke, rotate or delete. Changes of up to 20 rows have a sixteenth more. Answers stored for an Idempotency-Key count, too."`

	databaseFile, redisFile *urlFile // nil if the URL is not in a file

	box *mail.Box // keeps the mails of the demo if no mail server is set
}

// off is the value of an address setting that disables the listener.
const off = "off"

// Secret is a text that must not appear in help, logs or errors. Only string(s) returns it.
type Secret string

const mask = "[secret]"

// String masks the secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return mask
}

// GoString masks the secret.
func (s Secret) GoString() string { return s.String() }

// LogValue masks the secret.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText masks the secret.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Validate returns an error about the first invalid setting, in one line with its name and value.
func (c *Config) Validate() error {
	if err := c.readFiles(); err != nil {
		return err
	}
	_, headersErr := api.ParseHeaderStyle(c.Headers)
	_, proxiesErr := origin.ParseProxies(c.TrustedProxies)
	_, networksErr := notify.ParseNetworks(c.NotificationNetworks)
	_, ringErr := c.ring()
	var level slog.Level
	return firstError(
		checkDatabaseURL("WEIR_DATABASE_URL", c.DatabaseURL),
		checkDatabaseURL("WEIR_MIGRATE_DATABASE_URL", c.MigrateDatabaseURL),
		checkDatabaseURL("WEIR_DATABASE_LISTEN_URL", c.DatabaseListenURL),
		checkRedisURL("WEIR_REDIS_URL", c.RedisURL),
		bad(c.RedisTimeout < 5*time.Millisecond || c.RedisTimeout > 10*time.Second, "WEIR_REDIS_TIMEOUT", c.RedisTimeout, "must be 5ms to 10s"),
		bad(c.Instances < 1 || c.Instances > 10_000, "WEIR_INSTANCES", c.Instances, "must be 1 to 10000"),
		checkAddr("WEIR_HTTP_ADDR", c.HTTPAddr),
		checkAddr("WEIR_HTTPS_ADDR", c.HTTPSAddr),
		checkAddr("WEIR_GRPC_ADDR", c.GRPCAddr),
		checkAddr("WEIR_INTERNAL_ADDR", c.InternalAddr),
		bad(proxiesErr != nil, "WEIR_TRUSTED_PROXIES", c.TrustedProxies, fmt.Sprint(proxiesErr)),
		checkSMTPURL(c.SMTPURL),
		checkText("WEIR_MAIL_FROM", c.MailFrom, func(text string) error { _, err := mail.ParseFrom(text); return err }),
		checkText("WEIR_SECURITY_CONTACT", c.SecurityContact, checkContact),
		checkText("WEIR_PUBLIC_URL", c.PublicURL, func(text string) error { _, err := mail.ParsePublicURL(text); return err }),
		bad(!slices.Contains(dashboard.Signups, dashboard.Signup(c.Signup)), "WEIR_SIGNUP", c.Signup, "must be open, invite or closed"),
		bad(c.SignupTier != "" && !limit.ValidSlug(c.SignupTier), "WEIR_SIGNUP_TIER", c.SignupTier, "must be 1 to 63 of a-z, 0-9 and -"),
		ringErr,
		checkText("WEIR_STRIPE_URL", c.StripeURL, checkHTTPURL),
		bad(networksErr != nil, "WEIR_NOTIFICATION_NETWORKS", c.NotificationNetworks, fmt.Sprint(networksErr)),
		bad(headersErr != nil, "WEIR_HEADERS", c.Headers, fmt.Sprint(headersErr)),
		bad(c.PolicyMemory != 0 && c.PolicyMemory < 16<<20, "WEIR_POLICY_MEMORY", c.PolicyMemory, "must be 16MiB or more, or 0"),
		bad(c.SnapshotFile != "" && c.EncryptionKey == "", "WEIR_SNAPSHOT_FILE", c.SnapshotFile, "requires WEIR_ENCRYPTION_KEY, which encrypts the secrets in the file"),
		bad(c.SnapshotMaxAge < time.Minute, "WEIR_SNAPSHOT_MAX_AGE", c.SnapshotMaxAge, "must be 1m or more"),
		bad(c.SnapshotSize < 1<<20, "WEIR_SNAPSHOT_SIZE", c.SnapshotSize, "must be 1MiB or more"),
		bad(c.MaxConfigAge != 0 && c.MaxConfigAge < configStale, "WEIR_MAX_CONFIG_AGE", c.MaxConfigAge, "must be 0s, or 2s or more"),
		bad(c.MaxInFlight < 1 || c.MaxInFlight > 1_000_000, "WEIR_MAX_IN_FLIGHT", c.MaxInFlight, "must be 1 to 1000000"),
		bad(c.MaxConnections < 10 || c.MaxConnections > 1_000_000, "WEIR_MAX_CONNECTIONS", c.MaxConnections, "must be 10 to 1000000"),
		bad(c.BillingDayEvents < 1000 || c.BillingDayEvents > 1_000_000_000, "WEIR_BILLING_DAY_EVENTS", c.BillingDayEvents, "must be 1000 to 1000000000"),
		bad(c.BillingDaySize < 1<<20, "WEIR_BILLING_DAY_SIZE", c.BillingDaySize, "must be 1MiB or more"),
		bad(c.AuditDaySize < 1<<20, "WEIR_AUDIT_DAY_SIZE", c.AuditDaySize, "must be 1MiB or more"),
		bad(c.WriteRate < 0 || c.WriteRate > 1_000_000, "WEIR_WRITE_RATE", c.WriteRate, "must be 0 to 1000000"),
		bad(c.ResetRate < 0 || c.ResetRate > 1_000_000, "WEIR_RESET_RATE", c.ResetRate, "must be 0 to 1000000"),
		bad(c.TenantRecords != 0 && c.TenantRecords < 1<<20, "WEIR_TENANT_RECORDS", c.TenantRecords, "must be 1MiB or more, or 0"),
		bad(c.TenantCounters != 0 && (c.TenantCounters < 1000 || c.TenantCounters > 1_000_000_000), "WEIR_TENANT_COUNTERS", c.TenantCounters, "must be 1000 to 1000000000, or 0"),
		bad(c.AuditRetention < 0 || c.AuditRetention > 36_500, "WEIR_AUDIT_RETENTION", c.AuditRetention, "must be 0 to 36500"),
		bad(c.Drain < 0 || c.Drain > 5*time.Minute, "WEIR_DRAIN", c.Drain, "must be 0s to 5m"),
		bad(level.UnmarshalText([]byte(c.LogLevel)) != nil, "WEIR_LOG_LEVEL", c.LogLevel, "must be debug, info, warn or error"),
	)
}

// ring returns the keys of WEIR_ENCRYPTION_KEY.
func (c *Config) ring() (*seal.Ring, error) {
	ring, err := seal.Parse(string(c.EncryptionKey))
	if err != nil {
		return nil, fmt.Errorf("WEIR_ENCRYPTION_KEY: %w", err)
	}
	return ring, nil
}

// notificationNetworks returns the networks of WEIR_NOTIFICATION_NETWORKS.
func (c *Config) notificationNetworks() []netip.Prefix {
	networks, _ := notify.ParseNetworks(c.NotificationNetworks) // Validate has checked it
	return networks
}

// requireStores returns an error if the address of Postgres or Redis is missing.
func (c *Config) requireStores() error {
	if c.RedisURL == "" {
		return firstError(c.requireDatabase(), settingError("WEIR_REDIS_URL is not set"))
	}
	return c.requireDatabase()
}

func (c *Config) requireDatabase() error {
	if c.DatabaseURL == "" {
		return settingError("WEIR_DATABASE_URL is not set")
	}
	return nil
}

// migrateURL returns the address for migrations.
func (c *Config) migrateURL() string { return string(orElse(c.MigrateDatabaseURL, c.DatabaseURL)) }

func orElse(s, other Secret) Secret {
	if s == "" {
		return other
	}
	return s
}

// logger writes JSON lines to standard error.
func (c *Config) logger() *slog.Logger { return c.loggerTo(os.Stderr) }

func (c *Config) loggerTo(w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.LogLevel)) // Validate has checked it
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level}))
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func bad(isBad bool, name string, value any, rule string) error {
	if !isBad {
		return nil
	}
	return fmt.Errorf("%s: %s, and is %q", name, rule, fmt.Sprint(value))
}

func checkDatabaseURL(name string, s Secret) error {
	if s == "" {
		return nil
	}
	u, err := url.Parse(string(s))
	if err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") || u.Host == "" && u.Query().Get("host") == "" {
		return fmt.Errorf("%s: must be postgres://USER:PASSWORD@HOST:PORT/DATABASE, not %s", name, s)
	}
	return nil
}

func checkRedisURL(name string, s Secret) error {
	if s == "" {
		return nil
	}
	u, err := url.Parse(string(s))
	if err != nil || !slices.Contains([]string{"redis", "rediss", "unix"}, strings.SplitN(u.Scheme, "+", 2)[0]) {
		return fmt.Errorf("%s: must be redis://USER:PASSWORD@HOST:PORT/0, not %s", name, s)
	}
	return nil
}

func checkHTTPURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
		return errors.New("must be https://HOST")
	}
	return nil
}

func checkSMTPURL(s Secret) error {
	if s == "" {
		return nil
	}
	if err := mail.ParseSMTP(string(s)); err != nil {
		return fmt.Errorf("WEIR_SMTP_URL: %w, and is %s", err, s)
	}
	return nil
}

// checkText checks a setting with parse, unless it is empty.
func checkText(name, text string, parse func(string) error) error {
	if text == "" {
		return nil
	}
	err := parse(text)
	return bad(err != nil, name, text, fmt.Sprint(err))
}

// requireMail returns an error if a mail server is set, and another setting that mail needs is not.
func (c *Config) requireMail() error {
	switch {
	case c.SMTPURL != "" && c.MailFrom == "":
		return settingError("WEIR_MAIL_FROM is not set: WEIR_SMTP_URL requires it")
	case c.SMTPURL != "" && c.PublicURL == "":
		return settingError("WEIR_PUBLIC_URL is not set: WEIR_SMTP_URL requires it, because links in mails begin with it")
	}
	return nil
}

func checkAddr(name, addr string) error {
	if addr == "" || addr == off {
		return nil
	}
	_, port, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	return bad(err != nil, name, addr, "must be HOST:PORT, with the port a number up to 65535")
}

// settingError is an error of settings that are valid alone, but not together.
type settingError string

func (e settingError) Error() string { return string(e) }

// requireListeners returns an error if no listener is on, or if HTTPS is on without a certificate,
// or a certificate is set without HTTPS.
func (c *Config) requireListeners() error {
	https := serves(c.HTTPSAddr)
	secure, user := https || c.GRPCTLS, "WEIR_HTTPS_ADDR"
	if !https && c.GRPCTLS {
		user = "WEIR_GRPC_TLS"
	}
	switch {
	case c.GRPCTLS && !serves(c.GRPCAddr):
		return settingError("WEIR_GRPC_ADDR is not set: WEIR_GRPC_TLS requires it")
	case !https && !serves(c.HTTPAddr):
		return settingError("WEIR_HTTP_ADDR and WEIR_HTTPS_ADDR are both off: set one of them")
	case secure && c.TLSCert == "":
		return settingError("WEIR_TLS_CERT is not set: " + user + " requires it")
	case secure && c.TLSKey == "":
		return settingError("WEIR_TLS_KEY is not set: " + user + " requires it")
	case !secure && c.TLSCert != "":
		return settingError("WEIR_TLS_CERT is set without WEIR_HTTPS_ADDR, which uses it")
	case !secure && c.TLSKey != "":
		return settingError("WEIR_TLS_KEY is set without WEIR_HTTPS_ADDR, which uses it")
	}
	return nil
}

func serves(addr string) bool { return addr != "" && addr != off }

// parseError names the variable instead of the flag.
func parseError(k *kong.Kong, err error) error {
	text := err.Error()
	for _, flag := range k.Model.Flags {
		for _, env := range flag.Envs {
			if os.Getenv(env) != "" && strings.HasPrefix(text, "--"+flag.Name+":") {
				text = fromEnv.ReplaceAllString(strings.TrimPrefix(text, "--"+flag.Name+": "), "")
				return fmt.Errorf("%s: %s", env, text)
			}
		}
	}
	return err
}

var fromEnv = regexp.MustCompile(` \(from envar WEIR_[A-Z_]+=.*\)`)

// unknownVariables returns the names that begin with WEIR_ and are not settings, such as misspelled
// ones. The variables of tests, of scripts/dev.sh and of demo.env are not reported.
func unknownVariables(k *kong.Kong, environ []string) []string {
	known := []string{"WEIR_DEV_BACKEND", "WEIR_TEST_DATABASE_URL", "WEIR_TEST_REDIS_URL"}
	for _, line := range demoVariables {
		known = append(known, line)
	}
	for _, flag := range k.Model.Flags {
		known = append(known, flag.Envs...)
	}
	var unknown []string
	for _, variable := range environ {
		name, _, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, "WEIR_") && !slices.Contains(known, name) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	return unknown
}
