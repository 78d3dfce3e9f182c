package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"sync"
	"testing"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// A link is a proxy between one instance and one server.
type link struct {
	t     testing.TB
	addr  string
	proxy *toxiproxy.Proxy
}

var proxies = sync.OnceValue(func() *toxiproxy.ApiServer {
	return toxiproxy.NewServer(toxiproxy.NewMetricsContainer(prometheus.NewRegistry()), zerolog.Nop())
})

func newLink(t testing.TB, upstream string) *link {
	t.Helper()
	l := &link{t: t, proxy: toxiproxy.NewProxy(proxies(), t.Name(), "127.0.0.1:0", upstream)}
	require.NoError(t, l.proxy.Start())
	l.addr = l.proxy.Listen
	t.Cleanup(l.proxy.Stop)
	return l
}

// cut closes all connections and refuses new ones.
func (l *link) cut() { l.proxy.Stop() }

// join ends cut.
func (l *link) join() {
	l.t.Helper()
	require.NoError(l.t, l.proxy.Start())
}

// delay adds a latency to all answers.
func (l *link) delay(milliseconds int) {
	l.toxic("latency", "downstream", map[string]any{"latency": milliseconds})
}

// silence discards all data in both directions and keeps the connections open.
func (l *link) silence() {
	l.toxic("timeout", "downstream", map[string]any{"timeout": 0})
	l.toxic("timeout", "upstream", map[string]any{"timeout": 0})
}

// resetAfter closes each connection after this many bytes of answers.
func (l *link) resetAfter(bytes int) {
	l.toxic("limit_data", "downstream", map[string]any{"bytes": bytes})
}

// clear ends delay, silence and resetAfter. Connections that were silenced are closed.
func (l *link) clear() { l.proxy.Toxics.ResetToxics(context.Background()) }

// leadTo closes all connections, and connects new ones to another server.
func (l *link) leadTo(upstream string) {
	l.t.Helper()
	require.NoError(l.t, l.proxy.Update(&toxiproxy.Proxy{Listen: l.addr, Upstream: upstream, Enabled: true}))
}

func (l *link) toxic(kind, stream string, attributes map[string]any) {
	l.t.Helper()
	toxic, err := json.Marshal(map[string]any{"type": kind, "stream": stream, "attributes": attributes})
	require.NoError(l.t, err)
	_, err = l.proxy.Toxics.AddToxicJson(bytes.NewReader(toxic))
	require.NoError(l.t, err)
}
