// Command reference writes the reference of the provider from its schema, and the extract of the
// OpenAPI document from which the schema is derived:
//
//	go run ./internal/reference                  write docs/
//	go run ./internal/reference -openapi FILE    write internal/provider/schemas.json
package main

import (
	"flag"
	"log"
	"os"
	"path/filepath"

	"weir/terraform/internal/provider"
)

func main() {
	openapi := flag.String("openapi", "", "the document that the server has at /openapi.json")
	flag.Parse()
	if err := run(*openapi); err != nil {
		log.Fatal(err)
	}
}

func run(openapi string) error {
	if openapi != "" {
		document, err := os.ReadFile(openapi)
		if err != nil {
			return err
		}
		schemas, err := provider.ExtractSchemas(document)
		if err != nil {
			return err
		}
		return os.WriteFile("internal/provider/schemas.json", schemas, 0o644)
	}
	pages, err := provider.Reference(".")
	if err != nil {
		return err
	}
	if err := os.RemoveAll("docs"); err != nil {
		return err
	}
	for name, page := range pages {
		file := filepath.Join("docs", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(page), 0o644); err != nil {
			return err
		}
	}
	return nil
}
