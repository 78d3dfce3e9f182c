package tests

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/seal"
	"weir/internal/testenv"
)

const recipeSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// recipes are the systems of the section Recipes of docs/billing.md, with the payloads in
// testdata/recipes that they send, in order, and the plan of the subject after each.
var recipes = map[string][]struct{ payload, plan string }{
	"Paddle": {{"paddle-1-created", "pro"}, {"paddle-2-updated", "scale"}, {"paddle-1-created", "scale"}, {"paddle-3-canceled", "free"}},
	"Polar":  {{"polar-1-active", "pro"}, {"polar-2-canceled", "free"}, {"polar-1-active", "free"}},
	"Lago":   {{"lago-1-started", "pro"}, {"lago-2-terminated", "scale"}, {"lago-3-started", "scale"}, {"lago-4-terminated", "free"}},
	"Orb":    {{"orb-1-started", "pro"}, {"orb-2-plan-changed", "scale"}, {"orb-3-ended", "free"}, {"orb-2-plan-changed", "free"}},
}

// The recipes of docs/billing.md run as they are, in Node.js, with the payloads that each system
// documents. A payload that arrives late changes nothing, and one that is refused is an error of
// the recipe, so that the system sends it again.
func TestBillingRecipes(t *testing.T) {
	t.Parallel()
	blocks := recipeBlocks(t)
	dir := t.TempDir()
	for _, name := range []string{"package.json", "package-lock.json"} {
		text, err := os.ReadFile(filepath.Join("testdata", "recipes", name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	npm := exec.CommandContext(t.Context(), "npm", "ci", "--ignore-scripts", "--prefer-offline", "--no-audit", "--no-fund")
	npm.Dir = dir
	output, err := npm.CombinedOutput()
	require.NoError(t, err, "npm installs standardwebhooks (scripts/dev.sh node installs npm): %s", output)

	s := newSettings(t).With(settings{"WEIR_ENCRYPTION_KEY": seal.NewKey()})
	server := start(t, s).AwaitReady()
	tenant := newTenant(t, s, server)
	for _, plan := range []string{"free", "pro", "scale"} {
		tenant.do(http.MethodPut, server.URL()+"/v1/plans/"+plan, `{}`, http.StatusCreated)
	}
	var endpoint struct {
		URL string `json:"url"`
	}
	got := tenant.do(http.MethodPost, server.URL()+"/v1/billing/endpoints", `{"provider":"generic","signing_secrets":["`+recipeSecret+`"]}`, http.StatusCreated)
	require.NoError(t, json.Unmarshal(got.body, &endpoint))

	run := func(system, payload string, secret string) ([]byte, error) {
		script := filepath.Join(dir, system+".mjs")
		text := fmt.Sprintf("import {readFileSync} from 'node:fs'\n%s\nconst body = JSON.parse(readFileSync(process.argv[2]))\n%s", blocks["send"], blocks[system])
		require.NoError(t, os.WriteFile(script, []byte(text), 0o600))
		path, err := filepath.Abs(filepath.Join("testdata", "recipes", payload+".json"))
		require.NoError(t, err)
		node := exec.CommandContext(t.Context(), "node", script, path)
		node.Env = append(os.Environ(), "WEIR_WEBHOOK_URL="+endpoint.URL, "WEIR_WEBHOOK_SECRET="+secret)
		return node.CombinedOutput()
	}
	for system, steps := range recipes {
		subject := strings.ToLower(system) + "_user"
		for i, step := range steps {
			output, err := run(system, step.payload, recipeSecret)
			require.NoError(t, err, "%s, %s: %s", system, step.payload, output)
			awaitEvents(t, tenant, server, subject, i+1)
			var is struct {
				Plan       string `json:"plan"`
				Multiplier int    `json:"multiplier"`
			}
			require.NoError(t, json.Unmarshal(tenant.do(http.MethodGet, server.URL()+"/v1/subjects/"+subject, "", http.StatusOK).body, &is))
			require.Equal(t, step.plan, is.Plan, "%s after %s", system, step.payload)
			if step.payload == "paddle-1-created" && i == 0 {
				require.Equal(t, 5, is.Multiplier, "the quantity")
			}
		}
		output, err := run(system, steps[0].payload, "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")
		require.Error(t, err, "%s: an event that was refused", system)
		require.Contains(t, string(output), "Error", system)
	}
}

// awaitEvents waits until so many events of a subject are settled.
func awaitEvents(t *testing.T, tenant *client, server *instance, subject string, count int) {
	t.Helper()
	require.Eventually(t, func() bool {
		var list struct {
			Items []struct {
				Outcome string `json:"outcome"`
			} `json:"items"`
		}
		body := tenant.do(http.MethodGet, server.URL()+"/v1/billing/events?subject="+subject, "", http.StatusOK).body
		if json.Unmarshal(body, &list) != nil || len(list.Items) != count {
			return false
		}
		for _, e := range list.Items {
			if e.Outcome != "applied" && e.Outcome != "stale" {
				return false
			}
		}
		return true
	}, patience, tick, "%s: %d events", subject, count)
}

// recipeBlocks returns the blocks of JavaScript in the section Recipes by the system that the text
// before each names last, and "send".
func recipeBlocks(t *testing.T) map[string]string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(testenv.Root(), "docs", "billing.md"))
	require.NoError(t, err)
	_, section, found := strings.Cut(string(page), "\n## Recipes\n")
	require.True(t, found)
	names := regexp.MustCompile("(?m)^(Paddle|Polar|Lago|Orb|`send`)")
	out := map[string]string{}
	for {
		before, rest, more := strings.Cut(section, "```js\n")
		if !more {
			break
		}
		code, after, closed := strings.Cut(rest, "```")
		require.True(t, closed)
		name := names.FindAllString(before, -1)
		require.NotEmpty(t, name, "a block of an unknown system: %s", code)
		out[strings.Trim(name[len(name)-1], "`")] = code
		section = after
	}
	require.Len(t, out, len(recipes)+1)
	return out
}
