package weir

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// If the scanner reads an answer, encoding/json must return the same result.
func FuzzScanner(f *testing.F) {
	f.Add([]byte(benchAnswer))
	fixtures, err := os.ReadFile(filepath.Join(suiteFolder, "fixtures.json"))
	if err != nil {
		f.Fatal(err)
	}
	var answers map[string]fixture
	if err := json.Unmarshal(fixtures, &answers); err != nil {
		f.Fatal(err)
	}
	for _, answer := range answers {
		f.Add([]byte(answer.Body))
		f.Add([]byte(`{"results":[` + string(answer.Body) + `,` + string(answer.Body) + `]}`))
	}
	for _, odd := range []string{
		`{}`, ` { } `, `null`, `[]`, `{"allowed":true,}`, `{"allowed":true}x`, `{"allowed":null}`, `{"allowed":true,"allowed":false}`, `{"Allowed":true}`,
		`{"cost":01}`, `{"cost":-0}`, `{"cost":1.0}`, `{"cost":1e3}`, `{"cost":9223372036854775808}`, `{"cost":null}`, `{"limit":-5}`, `{"limit":-}`, `{"limit":"5"}`,
		`{"subject":"\u00e9"}`, `{"subject":"é"}`, "{\"subject\":\"a\x00\"}", "{\"subject\":\"\xff\"}", `{"subject":null}`, `{"subject":"a`, `{"future":1,"other":"x","deep":{}}`,
		`{"rules":null}`, `{"rules":[]}`, `{"rules":[{}]}`, `{"rules":[null]}`, `{"rules":[{"limit":1}],"rules":[{"burst":2}]}`, `{"error":null}`, `{"error":{},"error":{"code":"x"}}`,
		`{"results":[]}`, `{"results":[{"allowed":true}],"results":[]}`, `{"results":[{"allowed":true},]}`, `{"skipped":[{"rule":"a"}]}`, `{"skipped":"x"}`,
	} {
		f.Add([]byte(odd))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var scanned, decoded wireDecision
		if scanDecision(string(body), &scanned) {
			if err := json.Unmarshal(body, &decoded); err != nil || !reflect.DeepEqual(scanned, decoded) {
				t.Errorf("scanned %+v, decoded %+v, %v", scanned, decoded, err)
			}
		}
		var batch struct{ Results []wireDecision }
		if results, ok := scanBatch(string(body), nil); ok {
			if err := json.Unmarshal(body, &batch); err != nil || len(results) != len(batch.Results) || len(results) > 0 && !reflect.DeepEqual(results, batch.Results) {
				t.Errorf("scanned %+v, decoded %+v, %v", results, batch.Results, err)
			}
		}
	})
}

// The scanner must read the usual answers of a server.
func TestScannerReadsWhatServersAnswer(t *testing.T) {
	for name, answer := range readFixtures(t) {
		var w wireDecision
		if answer.Headers["Weir-Decision"] != "allow" && answer.Headers["Weir-Decision"] != "deny" {
			continue
		}
		if strings.Contains(string(answer.Body), `"lease":`) {
			continue // encoding/json reads leases, one for many checks
		}
		if !scanDecision(string(answer.Body), &w) {
			t.Errorf("%s is left to encoding/json", name)
		}
		if _, ok := scanBatch(`{"results":[`+string(answer.Body)+`]}`, nil); !ok {
			t.Errorf("%s in a batch is left to encoding/json", name)
		}
	}
}
