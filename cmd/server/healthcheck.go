package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

type healthcheckCommand struct{}

const healthcheckTimeout = 3 * time.Second

// Run asks the server with this configuration on this machine whether it is ready.
func (healthcheckCommand) Run(ctx context.Context, cfg *Config) error {
	scheme, addr := "http", cfg.HTTPAddr
	if !serves(addr) {
		scheme, addr = "https", cfg.HTTPSAddr
	}
	if !serves(addr) {
		return errors.New("neither WEIR_HTTP_ADDR nor WEIR_HTTPS_ADDR is set: no server to check")
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err // cannot happen after Validate
	}
	if ip := net.ParseIP(host); host == "" || ip.IsUnspecified() {
		host = "localhost"
	}
	ctx, cancel := context.WithTimeout(ctx, healthcheckTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+net.JoinHostPort(host, port)+"/readyz", nil)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{
		// The certificate is for the public name, and this request goes to localhost.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // nothing secret is sent
	}}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", request.URL, response.Status)
	}
	return nil
}
