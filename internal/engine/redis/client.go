package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"weir/internal/engine"
)

// ClientOption changes a setting of NewClient.
type ClientOption func(*clientSettings)

// WithPoolSize sets the number of connections to each server. Default 16.
func WithPoolSize(n int) ClientOption { return func(s *clientSettings) { s.poolSize = n } }

// WithCredentials sets a function that returns user and password for each new connection, in place
// of those of the URL. The Sentinels keep theirs.
func WithCredentials(credentials func() (user, password string)) ClientOption {
	return func(s *clientSettings) { s.credentials = credentials }
}

// WithTimeout sets how long a check waits for Redis. A connection is not given up earlier, neither
// while it is opened nor while it is silent. The defaults of 250 ms and 1 s are the least values.
func WithTimeout(check time.Duration) ClientOption {
	return func(s *clientSettings) {
		s.dialTimeout, s.ioTimeout = max(check, redisDialTimeout), max(check, redisIOTimeout)
	}
}

type clientSettings struct {
	poolSize    int
	dialTimeout time.Duration
	ioTimeout   time.Duration
	credentials func() (user, password string) // nil: those of the URL
}

// Settings of every client. Nothing is retried: a script whose answer was lost must not run twice.
// No call waits in a queue for a connection to an unavailable server.
const (
	redisPoolSize     = 16
	redisDialTimeout  = 250 * time.Millisecond
	redisPoolTimeout  = 10 * time.Millisecond
	redisIOTimeout    = time.Second // if no other deadline is nearer
	redisConnLifetime = 30 * time.Minute
	redisConnJitter   = 5 * time.Minute
	redisStateReload  = 5 * time.Second
)

// NewClient returns a client for counters. It connects at the first call, so it returns
// immediately, even if no server answers. Each call opens one connection at most: idle ones in
// reserve would be opened again after each failed probe of a silent server, which would then have
// hundreds of them to accept. The URL defines the kind of server (rediss for TLS):
//
//	redis://[user:password@]host:port/[db]                        one server
//	redis://...host:port?addr=host2:port2                         a Cluster; more addr as needed
//	redis://...host:port/[db]?master_name=NAME&addr=host2:port2   Sentinels that know the primary
//
// For a Cluster with one known address, repeat it as addr=host:port. Errors name the invalid part
// and never contain the password.
func NewClient(rawURL string, opts ...ClientOption) (redis.UniversalClient, error) {
	s := clientSettings{poolSize: redisPoolSize, dialTimeout: redisDialTimeout, ioTimeout: redisIOTimeout}
	for _, opt := range opts {
		opt(&s)
	}
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, errors.New("redis URL cannot be read: want redis://[user:password@]host:port/[db]")
	}
	if u.Scheme != "redis" && u.Scheme != "rediss" && u.Scheme != "unix" {
		return nil, errors.New("redis URL must begin with redis://, rediss:// or unix://")
	}
	if s.poolSize < 1 {
		return nil, errors.New("redis pool size must be at least 1")
	}
	var client redis.UniversalClient
	switch query := u.Query(); {
	case query.Has("master_name"):
		client, err = s.failover(rawURL)
	case query.Has("addr"):
		client, err = s.cluster(rawURL)
	default:
		client, err = s.single(rawURL)
	}
	if err != nil {
		return nil, fmt.Errorf("redis URL is not valid: %s", strings.TrimPrefix(masked(err, u), "redis: "))
	}
	return client, nil
}

// masked returns the error's text without the URL's password.
func masked(err error, u *url.URL) string {
	text := err.Error()
	if password, set := u.User.Password(); set && password != "" {
		text = strings.ReplaceAll(text, password, "***")
		text = strings.ReplaceAll(text, url.QueryEscape(password), "***")
	}
	return text
}

func (s *clientSettings) single(rawURL string) (redis.UniversalClient, error) {
	o, err := redis.ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	s.apply(o)
	return newTrackedClient(o, false), nil
}

func (s *clientSettings) cluster(rawURL string) (redis.UniversalClient, error) {
	o, err := redis.ParseClusterURL(rawURL)
	if err != nil {
		return nil, err
	}
	o.ClusterStateReloadInterval = redisStateReload
	o.MaxRetries = -1
	// Pipelines wait as these options say, and not as those of the servers.
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.ContextTimeoutEnabled = s.dialTimeout, s.ioTimeout, s.ioTimeout, true
	o.NewClient = func(node *redis.Options) *redis.Client {
		s.apply(node)
		return newTrackedClient(node, true)
	}
	return redis.NewClusterClient(o), nil
}

func (s *clientSettings) failover(rawURL string) (redis.UniversalClient, error) {
	o, err := redis.ParseFailoverURL(rawURL)
	if err != nil {
		return nil, err
	}
	o.Protocol = 2
	o.MaxRetries = -1
	o.DialTimeout, o.DialerRetries = s.dialTimeout, 1
	o.ReadTimeout, o.WriteTimeout, o.ContextTimeoutEnabled = s.ioTimeout, s.ioTimeout, true
	o.PoolSize, o.PoolTimeout = s.poolSize, redisPoolTimeout
	o.PipelinePoolSize = -1 // pipelines use the same pool
	o.ConnMaxLifetime, o.ConnMaxLifetimeJitter = redisConnLifetime, redisConnJitter
	o.DisableIdentity = true
	o.CredentialsProvider = s.credentials
	conns := &trackedConns{open: map[*trackedConn]struct{}{}}
	o.Dialer = conns.dialer(o.TLSConfig, o.DialTimeout)
	client := redis.NewFailoverClient(o)
	client.AddHook(conns)
	return client, nil
}

func (s *clientSettings) apply(o *redis.Options) {
	o.Protocol = 2
	o.MaxRetries = -1
	o.DialTimeout, o.DialerRetries = s.dialTimeout, 1
	o.ReadTimeout, o.WriteTimeout, o.ContextTimeoutEnabled = s.ioTimeout, s.ioTimeout, true
	o.PoolSize, o.PoolTimeout = s.poolSize, redisPoolTimeout
	o.PipelinePoolSize = -1 // pipelines use the same pool
	o.ConnMaxLifetime, o.ConnMaxLifetimeJitter = redisConnLifetime, redisConnJitter
	o.DisableIdentity = true
	o.CredentialsProvider = s.credentials
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}

func newTrackedClient(o *redis.Options, node bool) *redis.Client {
	conns := &trackedConns{open: map[*trackedConn]struct{}{}, node: node}
	o.Dialer = conns.dialer(o.TLSConfig, o.DialTimeout)
	client := redis.NewClient(o)
	client.AddHook(conns)
	return client
}

// trackedConns are the open connections of one client. If a server says that it is read-only, it
// has become a replica. All connections to it are then closed, so that the next dial resolves the
// name, or asks the Sentinels, again. go-redis itself closes one connection at a time, and only for
// one form of the error. A node of a Cluster that has become a replica redirects calls instead, so
// its connections stay open.
type trackedConns struct {
	node bool // of a Cluster
	life pulse
	mu   sync.Mutex
	open map[*trackedConn]struct{}
}

type trackedConn struct {
	net.Conn
	all      *trackedConns
	patience time.Duration // of the current read; 0: no limit
	began    time.Duration // in awake time
}

func (c *trackedConn) Close() error {
	c.all.mu.Lock()
	delete(c.all.open, c)
	c.all.mu.Unlock()
	return c.Conn.Close()
}

// SetReadDeadline stores the timeout of the next Read. If this process ran so late that nearly
// nothing is left of it, the server still gets leastPatience to answer.
func (c *trackedConn) SetReadDeadline(t time.Time) error {
	c.patience, c.began = 0, engine.Awake()
	if !t.IsZero() {
		c.patience = max(time.Until(t), leastPatience)
	}
	return c.Conn.SetReadDeadline(t)
}

// SetWriteDeadline sets the timeout of the next Write. A deadline that passed because this process
// ran late does not prevent it: nothing is known about the server yet.
func (c *trackedConn) SetWriteDeadline(t time.Time) error {
	if least := time.Now().Add(leastPatience); !t.IsZero() && t.Before(least) {
		t = least
	}
	return c.Conn.SetWriteDeadline(t)
}

// Read continues after its deadline while the server answers other calls: see pulse.
func (c *trackedConn) Read(b []byte) (int, error) {
	for first := true; ; first = false {
		n, err := c.Conn.Read(b)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) || c.patience <= 0 {
			if n > 0 {
				c.all.life.beat()
			}
			return n, err
		}
		more := c.all.life.more(c.patience, c.began, first)
		if more <= 0 || c.Conn.SetReadDeadline(time.Now().Add(more)) != nil {
			return n, err
		}
	}
}

// SyscallConn lets the pool detect a closed idle connection. This is not possible over TLS.
func (c *trackedConn) SyscallConn() (syscall.RawConn, error) {
	if sys, ok := c.Conn.(syscall.Conn); ok {
		return sys.SyscallConn()
	}
	return nil, errors.New("the connection has no socket")
}

func (t *trackedConns) dialer(tlsConfig *tls.Config, timeout time.Duration) func(context.Context, string, string) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: timeout}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		// The context of the pool ends at the timeout, as the dialer does. It must not end a second
		// dial.
		dialContext := context.WithoutCancel(ctx)
		raw, err := dialAwake(timeout, func() (net.Conn, error) { return dialer.DialContext(dialContext, network, addr) })
		if err != nil {
			return nil, err
		}
		conn := &trackedConn{Conn: raw, all: t}
		t.mu.Lock()
		t.open[conn] = struct{}{}
		t.mu.Unlock()
		if tlsConfig == nil {
			return conn, nil
		}
		secure := tls.Client(conn, tlsConfig)
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			return nil, err
		}
		return secure, nil
	}
}

// dialAwake dials again if a dial timed out although this process hardly ran: the connection was
// probably made in time, and noticed late.
func dialAwake(timeout time.Duration, dial func() (net.Conn, error)) (conn net.Conn, err error) {
	began := engine.Awake()
	for range maxPatience {
		conn, err = dial()
		var late net.Error
		if err == nil || !errors.As(err, &late) || !late.Timeout() || engine.Awake()-began > timeout/2 {
			break
		}
	}
	return conn, err
}

func (t *trackedConns) closeAll() {
	t.mu.Lock()
	open := make([]*trackedConn, 0, len(t.open))
	for conn := range t.open {
		open = append(open, conn)
	}
	t.mu.Unlock()
	for _, conn := range open {
		_ = conn.Close()
	}
}

// DialHook implements redis.Hook. If a dial fails, it returns a connection that fails when it is
// used. After failed dials, go-redis dials only once a second, and a server that is available again
// would get no calls for that long. The circuit breaker prevents a dial for each call.
func (t *trackedConns) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		if err != nil {
			return failedConn{notReached{err}}, nil
		}
		return conn, nil
	}
}

// failedConn stands for a connection that could not be made, for the reason err.
type failedConn struct{ err error }

func (c failedConn) Read([]byte) (int, error)              { return 0, c.err }
func (c failedConn) Write([]byte) (int, error)             { return 0, c.err }
func (c failedConn) Close() error                          { return nil }
func (c failedConn) LocalAddr() net.Addr                   { return &net.TCPAddr{} }
func (c failedConn) RemoteAddr() net.Addr                  { return &net.TCPAddr{} }
func (c failedConn) SetDeadline(time.Time) error           { return nil }
func (c failedConn) SetReadDeadline(time.Time) error       { return nil }
func (c failedConn) SetWriteDeadline(time.Time) error      { return nil }
func (c failedConn) SyscallConn() (syscall.RawConn, error) { return nil, c.err } // the pool discards it

// closeCmd closes all connections instead of being sent.
type closeCmd struct{ *redis.StatusCmd }

// ProcessHook implements redis.Hook.
func (t *trackedConns) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if _, closes := cmd.(closeCmd); closes {
			t.closeAll()
			return nil
		}
		err := next(ctx, cmd)
		if !t.node && readOnly(err) {
			t.closeAll()
		}
		return err
	}
}

// ProcessPipelineHook implements redis.Hook.
func (t *trackedConns) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			if !t.node && readOnly(cmd.Err()) {
				t.closeAll()
				break
			}
		}
		return err
	}
}

// readOnly reports whether a server refused to write because it is a replica. The error has
// different forms: for a command, for a command inside a script, and for a script as a whole.
func readOnly(err error) bool {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return false
	}
	text := strings.ToLower(reply.Error())
	return strings.Contains(text, "readonly") || strings.Contains(text, "read only replica")
}
