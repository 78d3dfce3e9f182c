package main

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// The demo's passwords are printed and its mails are public to the machine, so it listens on
// loopback only. The server itself listens everywhere by default.
func TestDemoListensOnLoopback(t *testing.T) {
	t.Setenv("WEIR_HTTP_ADDR", "")
	cfg := Config{HTTPAddr: ":8080", InternalAddr: "127.0.0.1:9090"}
	d := demoCommand{Dir: t.TempDir()}
	_, err := d.configure(&cfg)
	require.NoError(t, err)
	for _, addr := range []string{cfg.HTTPAddr, cfg.HTTPSAddr, cfg.GRPCAddr, cfg.InternalAddr} {
		host, _, err := net.SplitHostPort(addr)
		require.NoError(t, err)
		require.True(t, net.ParseIP(host).IsLoopback(), addr)
	}
}
