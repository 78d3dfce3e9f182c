// Command weir is a client of Weir for terminals and scripts: checks, lists, the configuration as a
// file, and configurations of gateways.
//
// Example: `weir check ann` sends POST /v1/check to the server of the stored login, and prints
// the decision. Its exit code is 0 if the check is allowed, and 3 if it is denied.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"golang.org/x/term"
)

const description = `Asks a Weir server.

The server and the key come from WEIR_URL and WEIR_KEY, or else from "weir login".
The exit code is 0; 1 if something failed; 2 if the command line is wrong; 3 if a check is denied or a
configuration differs.`

type cli struct {
	Output string `short:"o" enum:"table,json,csv" default:"table" help:"How to print: ${enum}."`

	Login    loginCmd   `cmd:"" help:"Sign in: store the address of a server and a key that you approve in the browser."`
	Check    checkCmd   `cmd:"" help:"Check whether a subject may do something now, and count it."`
	Explain  explainCmd `cmd:"" help:"Print what a check would answer, and which rules do not apply and why. Consumes nothing."`
	Rules    rulesCmd   `cmd:"" help:"List the rules."`
	Plans    plansCmd   `cmd:"" help:"List the plans."`
	Subjects subjectCmd `cmd:"" help:"List the registered subjects."`
	Keys     keysCmd    `cmd:"" help:"List the API keys."`
	Config   struct {
		Pull configPullCmd `cmd:"" help:"Write the configuration to a file or standard output."`
		Diff configDiffCmd `cmd:"" help:"Print what a push of a file would change. The exit code is 3 if anything would."`
		Push configPushCmd `cmd:"" help:"Print what a file changes, and apply it after confirmation."`
	} `cmd:"" help:"Keep the configuration in a file."`
	Tail     tailCmd     `cmd:"" help:"Print decisions as they are made."`
	Top      topCmd      `cmd:"" help:"Show the busiest and the most denied subjects."`
	Usage    usageCmd    `cmd:"" help:"Print how many checks were allowed and denied, over time."`
	Audit    auditCmd    `cmd:"" help:"List the changes of the configuration, newest first."`
	Simulate simulateCmd `cmd:"" help:"Print what rules would decide about requests of a file. Stores and counts nothing."`
	Replay   replayCmd   `cmd:"" help:"Print what rules would have decided about the requests of an access log. Only the rules come from the server."`
	Gateway  gatewayCmd  `cmd:"" help:"Print the configuration of a gateway with the address and the key filled in."`

	Completion completionCmd `cmd:"" help:"Print a script that completes the command line in a shell."`
}

// A terminal has the input and output of a command.
type terminal struct {
	in       io.Reader
	out, err io.Writer
	getenv   func(string) string
	output   string // table, json or csv

	interactive bool                                 // err is shown to a person
	colour      bool                                 // out shows colours
	columns     func() int                           // width of out; nil or 0: unlimited
	wait        func(time.Duration) <-chan time.Time // nil: time.After
}

// errNegative is the error of a command that succeeded with a negative answer.
var errNegative = errors.New("")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	t := &terminal{in: os.Stdin, out: os.Stdout, err: os.Stderr, getenv: os.Getenv, interactive: isTerminal(os.Stderr)}
	if isTerminal(os.Stdout) {
		t.colour = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
		t.columns = func() int {
			width, _, err := term.GetSize(int(os.Stdout.Fd()))
			if err != nil {
				return 0
			}
			return width
		}
	}
	code := run(ctx, t, os.Args[1:])
	stop()
	os.Exit(code)
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// width returns the width of out in characters; 0: unlimited.
func (t *terminal) width() int {
	if t.columns == nil {
		return 0
	}
	return t.columns()
}

func (t *terminal) after(d time.Duration) <-chan time.Time {
	if t.wait == nil {
		return time.After(d)
	}
	return t.wait(d)
}

// run returns the exit code.
func run(ctx context.Context, t *terminal, args []string) (code int) {
	var c cli
	ended := -1
	parser := kong.Must(&c, kong.Name("weir"), kong.Description(description), kong.Writers(t.out, t.err),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}), kong.Exit(func(code int) { ended = code }))
	if len(args) > 0 && args[0] == completeCommand {
		for _, word := range complete(parser.Model, args[1:]) {
			fmt.Fprintln(t.out, word)
		}
		return 0
	}
	command, err := parser.Parse(args)
	if ended >= 0 { // it has printed the help
		return ended
	}
	if err != nil {
		fmt.Fprintln(t.err, "weir:", err)
		return 2
	}
	t.output = c.Output
	command.BindTo(ctx, (*context.Context)(nil))
	command.Bind(t)
	switch err := command.Run(); {
	case err == nil:
		return 0
	case errors.Is(err, errNegative):
		return 3
	default:
		fmt.Fprintln(t.err, "weir:", err)
		return 1
	}
}
