// Command server is Weir: it serves checks, the admin API and the dashboard, and has commands for
// the operator of a deployment. config.go reads the settings from the environment. serve.go builds
// the parts of the server in order and closes them in reverse.
//
// Example: `server serve` with WEIR_DATABASE_URL and WEIR_REDIS_URL reads the settings, connects to
// Postgres and Redis, builds the engines, the checker and the HTTP servers, and waits. On SIGTERM,
// /readyz answers 503 for the time of WEIR_DRAIN. Then the servers stop, the leases are returned,
// the usage is written, and the connections are closed.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // an empty container image has no time zones

	"github.com/alecthomas/kong"
	_ "golang.org/x/crypto/x509roots/fallback" // an empty container image has no certificate authorities
)

// cli is the command line. Settings may precede or follow the command.
type cli struct {
	Config

	Serve        serveCommand        `cmd:"" default:"1" help:"Start the server (default)."`
	Migrate      migrateCommand      `cmd:"" name:"migrate" help:"Migrate the database schema."`
	OperatorKey  operatorKeyCommand  `cmd:"" help:"Manage operator keys."`
	OperatorLink operatorLinkCommand `cmd:"" help:"Create a link with which a person becomes an operator of the service."`
	SignupLink   signupLinkCommand   `cmd:"" help:"Create a link with which a person creates their own tenant, unless WEIR_SIGNUP is closed."`
	PasswordLink passwordLinkCommand `cmd:"" help:"Create a link with which a person sets a new password."`
	Import       importCommand       `cmd:"" help:"Import the configuration of another rate limiter."`
	Audit        auditCommand        `cmd:"" help:"Verify audit trails, or print their heads."`
	Billing      billingCommand      `cmd:"" help:"Reconcile billing endpoints and rotate their encryption key."`
	Demo         demoCommand         `cmd:"" help:"Create the demo tenant."`
	Healthcheck  healthcheckCommand  `cmd:"" help:"Exit with 0 if the server with this configuration is ready."`
}

const description = `Weir answers whether somebody may do something now, and if not, when.

Settings come from the environment; each is also a flag, and the flag wins.`

func main() { os.Exit(run(os.Args[1:])) }

// run returns the exit code: 0 for success, 1 for a failure, 2 for an invalid command line or
// setting.
func run(args []string) int {
	var c cli
	parser := kong.Must(&c, kong.Name("server"), kong.Description(description),
		kong.ConfigureHelp(kong.HelpOptions{FlagsLast: true}))
	kctx, err := parser.Parse(args)
	if err != nil {
		return fail(2, parseError(parser, err))
	}
	if err := c.Validate(); err != nil {
		return fail(2, err)
	}
	log := c.logger()
	for _, name := range unknownVariables(parser, os.Environ()) {
		log.Warn("unknown variable ignored", "variable", name)
	}
	kctx.Bind(&c.Config, log)
	kctx.BindTo(untilSignal(log), (*context.Context)(nil))
	if err := kctx.Run(); err != nil {
		if _, wrong := errors.AsType[settingError](err); wrong {
			return fail(2, err)
		}
		return fail(1, err)
	}
	return 0
}

func fail(code int, err error) int {
	fmt.Fprintln(os.Stderr, "server:", err)
	return code
}

// untilSignal returns a context that ends with the first SIGINT or SIGTERM. The second signal ends
// the process immediately.
func untilSignal(log *slog.Logger) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		log.Info("stopping", "signal", (<-signals).String())
		cancel()
		log.Warn("stopping immediately", "signal", (<-signals).String())
		os.Exit(1)
	}()
	return ctx
}
