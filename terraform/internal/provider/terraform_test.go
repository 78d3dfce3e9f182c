//go:build server && terraform

package provider

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"weir/terraform/internal/core"
)

const address = "weir-dev/weir" // of the provider; go run ./sdk/names changes it

// program returns the Terraform or OpenTofu to test with. The tests fail without one.
func program(t testing.TB) string {
	name := os.Getenv("WEIR_TEST_TERRAFORM")
	if name == "" {
		t.Fatal("WEIR_TEST_TERRAFORM is not set: run make test-terraform")
	}
	return name
}

// built is the provider, built once for all tests.
var built struct {
	sync.Once
	folder string
	err    error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.folder != "" {
		_ = os.RemoveAll(built.folder)
	}
	os.Exit(code)
}

func buildProvider(t testing.TB) string {
	built.Do(func() {
		if built.folder, built.err = os.MkdirTemp("", "weir-terraform-"); built.err != nil {
			return
		}
		build := exec.Command("go", "build", "-o", filepath.Join(built.folder, "terraform-provider-"+path.Base(address)), ".")
		build.Dir = filepath.Join("..", "..")
		if out, err := build.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.folder
}

// commandLine is a workspace of Terraform, as a user has it.
type commandLine struct {
	testing.TB
	program, folder string
	environ         []string
	output          string
	between         func()
}

func (w *commandLine) BeforeApply(f func()) { w.between = f }

func newCommandLine(t testing.TB) *commandLine {
	w := &commandLine{TB: t, program: program(t), folder: t.TempDir()}
	settings := fmt.Sprintf("provider_installation {\n  dev_overrides {\n    %q = %q\n  }\n  direct {}\n}\n", address, buildProvider(t))
	file := filepath.Join(w.folder, "cli.tfrc")
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "TF_") && !strings.HasPrefix(variable, "WEIR_") {
			w.environ = append(w.environ, variable)
		}
	}
	w.environ = append(w.environ, "TF_CLI_CONFIG_FILE="+file, "CHECKPOINT_DISABLE=1", "TF_IN_AUTOMATION=1")
	return w
}

// run runs a command, and returns its standard output.
func (w *commandLine) run(args ...string) (string, error) {
	cmd := exec.Command(w.program, args...)
	cmd.Dir, cmd.Env = w.folder, w.environ
	var stdout, all strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &all
	err := cmd.Run()
	w.output = stdout.String() + all.String()
	if err != nil {
		err = fmt.Errorf("terraform %s: %w\n%s", strings.Join(args, " "), err, w.output)
	}
	return stdout.String(), err
}

func (w *commandLine) write(config string) {
	head := fmt.Sprintf("terraform {\n  required_providers {\n    weir = {\n      source = %q\n    }\n  }\n}\n", address)
	if err := os.WriteFile(filepath.Join(w.folder, "main.tf"), []byte(head+config), 0o600); err != nil {
		w.Fatal(err)
	}
}

// plan writes a plan to a file, and returns the actions in it.
func (w *commandLine) plan(config string) (map[string]core.Action, error) {
	w.write(config)
	if _, err := w.run("plan", "-input=false", "-no-color", "-lock=false", "-out=plan"); err != nil {
		return nil, err
	}
	shown, err := w.run("show", "-json", "plan")
	if err != nil {
		return nil, err
	}
	var plan struct {
		Changes []struct {
			Address string `json:"address"`
			Mode    string `json:"mode"`
			Change  struct {
				Actions []string `json:"actions"`
			} `json:"change"`
		} `json:"resource_changes"`
	}
	if err := json.Unmarshal([]byte(shown), &plan); err != nil {
		return nil, err
	}
	actions := map[string]core.Action{}
	for _, change := range plan.Changes {
		switch action := strings.Join(change.Change.Actions, " "); action {
		case "no-op", "read", "open":
		case "delete create", "create delete":
			actions[change.Address] = core.Replace
		default:
			actions[change.Address] = core.Action(action)
		}
	}
	return actions, nil
}

func (w *commandLine) Plan(config string) (map[string]core.Action, error) { return w.plan(config) }

func (w *commandLine) Apply(config string) (map[string]core.Action, error) {
	actions, err := w.plan(config)
	if w.between != nil {
		w.between()
		w.between = nil
	}
	if err == nil {
		_, err = w.run("apply", "-input=false", "-no-color", "-lock=false", "plan")
	}
	return actions, err
}

func (w *commandLine) Import(config, address, id string) error {
	w.write(config)
	_, err := w.run("import", "-input=false", "-no-color", "-lock=false", address, id)
	return err
}

func (w *commandLine) State(address string) map[string]any {
	shown, err := w.run("show", "-json")
	if err != nil {
		w.Fatal(err)
	}
	var state struct {
		Values struct {
			Root struct {
				Resources []struct {
					Address string          `json:"address"`
					Values  json.RawMessage `json:"values"`
				} `json:"resources"`
			} `json:"root_module"`
		} `json:"values"`
	}
	if err := json.Unmarshal([]byte(shown), &state); err != nil {
		w.Fatal(err)
	}
	for _, r := range state.Values.Root.Resources {
		if r.Address == address {
			return decodeJSON(w, r.Values)
		}
	}
	return nil
}

func (w *commandLine) Warned() string { return flatten(w.output) }

// TestDocumentation verifies the format of the examples, and that Terraform accepts the
// configurations of the documentation.
func TestDocumentation(t *testing.T) {
	w := newCommandLine(t)
	module, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	if out, err := w.run("fmt", "-check", "-recursive", "-diff", filepath.Join(module, "examples")); err != nil {
		t.Errorf("%s%v", out, err)
	}
	for _, file := range []string{filepath.Join(module, "README.md"), filepath.Join(module, "..", "docs", "terraform.md")} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, block, _ := strings.Cut(string(text), "```terraform\n")
		block, _, found := strings.Cut(block, "```")
		if !found {
			t.Fatalf("%s has no configuration", file)
		}
		if strings.Contains(block, "required_providers") {
			err = os.WriteFile(filepath.Join(w.folder, "main.tf"), []byte(block), 0o600)
		} else {
			w.write(block)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.run("validate", "-no-color"); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// TestTerraform runs the scenarios with Terraform.
func TestTerraform(t *testing.T) {
	if _, err := exec.LookPath(program(t)); err != nil {
		t.Fatal(errors.Join(err, errors.New("install Terraform or OpenTofu, or run make test-terraform")))
	}
	runScenarios(t, func(t *testing.T) workspace { return newCommandLine(t) })
}
