package main

import (
	"fmt"
	"net/url"
	"path/filepath"

	"weir/docs/gateways"
)

type gatewayCmd struct {
	Name string `arg:"" help:"Name of the gateway, such as nginx."`
	CA   string `name:"ca" placeholder:"FILE" help:"Certificate authorities that the gateway trusts, PEM, for a server with HTTPS. Default: those of the system."`
}

// Run prints the files of the gateway's configuration.
func (c *gatewayCmd) Run(t *terminal) error {
	if len(gateways.Files(c.Name)) == 0 { // the mistake to report first
		_, err := gateways.Configure(c.Name, &url.URL{}, "", "")
		return err
	}
	s, err := t.connect()
	if err != nil {
		return err
	}
	u, err := url.Parse(s.URL)
	if err != nil {
		return err
	}
	authorities := c.CA
	if authorities != "" {
		if authorities, err = filepath.Abs(authorities); err != nil {
			return err
		}
	}
	files, err := gateways.Configure(c.Name, u, s.Key, authorities)
	if err != nil {
		return err
	}
	for i, file := range files {
		if len(files) > 1 {
			fmt.Fprintf(t.out, "# --- %s ---\n", file.Name)
		}
		if _, err := fmt.Fprint(t.out, file.Content); err != nil {
			return err
		}
		if i < len(files)-1 {
			fmt.Fprintln(t.out)
		}
	}
	return nil
}
