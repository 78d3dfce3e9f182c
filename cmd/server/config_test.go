package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"

	"weir/internal/seal"
)

// parse reads a configuration in the same way as main.
func parse(t *testing.T, environ map[string]string, args ...string) (*Config, *kong.Kong, error) {
	t.Helper()
	for name, value := range environ {
		t.Setenv(name, value)
	}
	var c cli
	parser, err := kong.New(&c)
	require.NoError(t, err)
	if _, err := parser.Parse(args); err != nil {
		return nil, parser, parseError(parser, err)
	}
	return &c.Config, parser, c.Validate()
}

// Deployments rely on the defaults of settings that they do not set.
func TestDefaults(t *testing.T) {
	cfg, _, err := parse(t, nil)
	require.NoError(t, err)
	text, err := json.Marshal(cfg)
	require.NoError(t, err)
	require.JSONEq(t, `{"DatabaseURL":"","DatabaseURLFile":"","RedisURLFile":"","MigrateDatabaseURL":"","DatabaseListenURL":"","Migrate":true,"AllowSuperuser":false,"RedisURL":"","RedisTimeout":50000000,"PolicyMemory":536870912,
		"Instances":1,"HTTPAddr":":8080","HTTPSAddr":"","TLSCert":"","TLSKey":"","GRPCAddr":"","GRPCTLS":false,"EncryptionKey":"","StripeURL":"https://api.stripe.com","NotificationNetworks":"","InternalAddr":"127.0.0.1:9090","InternalHosts":"","ProfileContention":false,"TrustedProxies":"","SMTPURL":"","MailFrom":"","PublicURL":"","SecurityContact":"","Signup":"closed","SignupTier":"","Headers":"draft,x","MaxInFlight":10000,"MaxConnections":20000,"MaxConfigAge":0,"SnapshotFile":"","SnapshotMaxAge":86400000000000,"SnapshotSize":268435456,"Drain":5000000000,"WriteRate":100,"ResetRate":20,"BillingDayEvents":500000,"BillingDaySize":2147483648,"TenantCounters":10000000,"TenantRecords":268435456,"AuditRetention":0,"AuditDaySize":1073741824,"LogLevel":"info"}`, string(text))
}

func TestFlagWinsOverVariable(t *testing.T) {
	cfg, _, err := parse(t, map[string]string{"WEIR_HTTP_ADDR": ":1", "WEIR_REDIS_TIMEOUT": "20ms"}, "--http-addr=:2")
	require.NoError(t, err)
	require.Equal(t, ":2", cfg.HTTPAddr)
	require.Equal(t, "20ms", cfg.RedisTimeout.String())
}

// An error names the variable that the operator set, not one derived from it.
func TestErrorsNameTheVariable(t *testing.T) {
	_, _, err := parse(t, map[string]string{"WEIR_DRAIN": "soon"})
	require.ErrorContains(t, err, "WEIR_DRAIN: ")
	require.NotContains(t, err.Error(), "--drain")
}

// No way to print a value shows the password.
func TestSecretIsMaskedEverywhere(t *testing.T) {
	secret := Secret("postgres://u:hunter2@h/d")
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "secret", secret, "in", struct{ S Secret }{secret})
	text, err := json.Marshal(map[string]any{"s": secret, "c": Config{DatabaseURL: secret}})
	require.NoError(t, err)
	for _, out := range []string{
		fmt.Sprint(secret), fmt.Sprintf("%v %+v %#v %s %q", secret, secret, secret, secret, secret),
		fmt.Sprintf("%+v %#v", Config{RedisURL: secret}, Config{RedisURL: secret}), log.String(), string(text),
	} {
		require.NotContains(t, out, "hunter2")
		require.Contains(t, out, "secret")
	}
	require.Equal(t, "postgres://u:hunter2@h/d", string(secret))
}

func TestUnknownVariables(t *testing.T) {
	_, parser, err := parse(t, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"WEIR_HTTP_ADR", "WEIR_Z"}, unknownVariables(parser, []string{
		"PATH=/bin", "WEIR_Z=1", "WEIR_HTTP_ADDR=:1", "WEIR_HTTP_ADR=:1", "WEIR_KEY=from demo.env", "WEIR_TEST_REDIS_URL=x",
	}))
}

// Missing mail settings are reported at startup, not when the first mail is sent.
func TestMailSettings(t *testing.T) {
	for variable, value := range map[string]string{
		"WEIR_SMTP_URL": "mail.example", "WEIR_MAIL_FROM": "nobody", "WEIR_PUBLIC_URL": "weir.example", "WEIR_SIGNUP": "everybody",
		"WEIR_SIGNUP_TIER": "Free tier",
	} {
		t.Run(variable, func(t *testing.T) {
			_, _, err := parse(t, map[string]string{variable: value})
			require.ErrorContains(t, err, variable+": ")
		})
	}
	_, _, err := parse(t, map[string]string{"WEIR_SMTP_URL": "http://u:hunter2@mail.example"})
	require.ErrorContains(t, err, "WEIR_SMTP_URL: ")
	require.NotContains(t, err.Error(), "hunter2")
	cfg := Config{SMTPURL: "smtp://mail.example"}
	require.ErrorContains(t, cfg.requireMail(), "WEIR_MAIL_FROM is not set")
	cfg.MailFrom = "weir@weir.example"
	require.ErrorContains(t, cfg.requireMail(), "WEIR_PUBLIC_URL is not set")
	cfg.PublicURL = "https://weir.example"
	require.NoError(t, cfg.requireMail())
}

// A snapshot without a key to encrypt its secrets, or with a useless bound, is refused at the
// start.
func TestSnapshotSettings(t *testing.T) {
	for name, variables := range map[string]map[string]string{
		"WEIR_SNAPSHOT_FILE":    {"WEIR_SNAPSHOT_FILE": "/var/lib/weir/snapshot"},
		"WEIR_SNAPSHOT_MAX_AGE": {"WEIR_SNAPSHOT_MAX_AGE": "59s"},
		"WEIR_SNAPSHOT_SIZE":    {"WEIR_SNAPSHOT_SIZE": "512KiB"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := parse(t, variables)
			require.ErrorContains(t, err, name)
		})
	}
	_, _, err := parse(t, map[string]string{"WEIR_SNAPSHOT_FILE": "/var/lib/weir/snapshot", "WEIR_ENCRYPTION_KEY": seal.NewKey()})
	require.NoError(t, err)
}

// Whatever a value contains, an event is one line, and the value is read back as it was: nobody can
// forge a further event, or a field of one.
func TestForgedLogLines(t *testing.T) {
	var written bytes.Buffer
	log := (&Config{LogLevel: "info"}).loggerTo(&written)
	values := []string{
		"x\n" + `{"level":"INFO","msg":"forged"}`, "x\r\n" + `{"msg":"forged"}`, `x","msg":"forged`, "x\x00\x1b[2Kforged", "x\u2028forged\u0085forged", `x\`,
	}
	for _, value := range values {
		log.Warn("event", "value", value, "error", errors.New(value), slog.Group("group", value, value))
	}
	lines := strings.Split(strings.TrimSuffix(written.String(), "\n"), "\n")
	require.Len(t, lines, len(values))
	for n, line := range lines {
		require.NotContains(t, line, "\r")
		require.NotContains(t, line, "\x1b")
		var event struct {
			Msg, Value, Error string
			Group             map[string]string
		}
		decoder := json.NewDecoder(strings.NewReader(line))
		require.NoError(t, decoder.Decode(&event), line)
		require.Equal(t, 1, strings.Count(line, `"msg":`), line)
		require.Equal(t, "event", event.Msg)
		require.Equal(t, values[n], event.Value)
		require.Equal(t, values[n], event.Error)
		require.Equal(t, map[string]string{values[n]: values[n]}, event.Group)
	}
}
