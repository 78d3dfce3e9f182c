package peers

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
)

// Every instance of the deployment receives a message, also one that subscribes after it was sent.
// Messages that another program publishes are ignored.
func TestBroadcast(t *testing.T) {
	t.Parallel()
	client := testenv.RedisClient(t)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	t.Cleanup(stop)
	received := make(chan string, 100)
	run := func(b *Broadcast, receive func([]byte)) {
		running.Go(func() { b.Run(ctx, client, slog.New(slog.DiscardHandler), receive) })
	}

	sender := NewBroadcast("test", []byte("secret"))
	run(sender, func([]byte) {})
	sender.Send([]byte("early"))
	require.Eventually(t, func() bool { return len(sender.out) == 0 }, time.Minute, time.Millisecond, "sent")

	run(NewBroadcast("test", []byte("secret")), func(m []byte) { received <- string(m) })
	require.Equal(t, "early", <-received, "sent again")
	foreign := NewBroadcast("test", []byte("another secret"))
	require.NoError(t, client.Publish(ctx, sender.channel, "no MAC").Err())
	require.NoError(t, client.Publish(ctx, sender.channel, foreign.sign([]byte("forged"))).Err())
	sender.Send([]byte("late"))
	for m := range received {
		require.NotContains(t, []string{"no MAC", "forged"}, m)
		if m == "late" {
			break
		}
	}
}

func TestBroadcastIsBounded(t *testing.T) {
	t.Parallel()
	b := NewBroadcast("test", []byte("secret"))
	for range 2 * maxUnsent {
		b.Send([]byte("message"))
	}
	require.Len(t, b.out, maxUnsent)
	_, ok := b.open(b.sign(make([]byte, maxMessage+1)))
	require.False(t, ok)
}
