package main

import (
	"fmt"
	"net/url"
	"strings"

	"weir/docs/gateways"
)

type gatewayCmd struct {
	Name string `arg:"" help:"Name of the gateway, such as nginx."`
}

// Run prints the files of the gateway's configuration.
func (c *gatewayCmd) Run(t *terminal) error {
	files := gateways.Files(c.Name)
	if len(files) == 0 {
		return fmt.Errorf("unknown gateway %q: choose one of %s", c.Name, strings.Join(gateways.Names(), ", "))
	}
	s, err := t.connect()
	if err != nil {
		return err
	}
	u, err := url.Parse(s.URL)
	if err != nil {
		return err
	}
	address := u.Host
	if u.Port() == "" {
		address += map[string]string{"http": ":80", "https": ":443"}[u.Scheme]
	}
	fill := strings.NewReplacer(gateways.Weir, address, gateways.Key, s.Key)
	for i, file := range files {
		if len(files) > 1 {
			fmt.Fprintf(t.out, "# --- %s ---\n", file.Name)
		}
		content := fill.Replace(file.Content)
		if _, err := fmt.Fprint(t.out, content); err != nil {
			return err
		}
		if i < len(files)-1 {
			fmt.Fprintln(t.out)
		}
	}
	if u.Scheme == "https" {
		fmt.Fprintln(t.err, "The configuration sends plain HTTP to Weir: add TLS to it.")
	}
	return nil
}
