package peers

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"
)

// Broadcast sends short messages to all other instances through a Redis channel. It is a second way
// for news that must not wait for Postgres. A message can be lost, and can arrive several times and
// late, so receivers compare versions.
//
// Each message carries a MAC, so that another program that can publish on the channel cannot change
// anything.
type Broadcast struct {
	channel string
	secret  []byte
	out     chan []byte
}

const (
	maxMessage = 128 << 10 // bytes
	// Redis keeps no message for a subscriber that is connecting again, so each is sent several
	// times.
	resendTick = 250 * time.Millisecond
	maxUnsent  = 1024 // messages
)

// resendAfter has the ticks after which a message is sent again.
var resendAfter = [...]int{1, 4, 12, 40}

// NewBroadcast returns a broadcast for this name, among instances with the same secret. Deployments
// that share a Redis have different channels.
func NewBroadcast(name string, secret []byte) *Broadcast {
	derive := func(purpose string) []byte {
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte("broadcast " + purpose + "\x00" + name))
		return mac.Sum(nil)
	}
	return &Broadcast{
		channel: "w1:" + name + ":" + hex.EncodeToString(derive("channel")[:8]), secret: derive("mac"), out: make(chan []byte, maxUnsent),
	}
}

// Send sends a message of up to 128 KiB, and does not wait. While 1,024 messages wait for Redis, it
// drops further ones.
func (b *Broadcast) Send(message []byte) {
	select {
	case b.out <- b.sign(message):
	default:
	}
}

func (b *Broadcast) sign(message []byte) []byte {
	mac := hmac.New(sha256.New, b.secret)
	mac.Write(message)
	return mac.Sum(message[:len(message):len(message)])
}

// open returns the message, or false if this deployment did not sign it.
func (b *Broadcast) open(signed []byte) (message []byte, ok bool) {
	if len(signed) < sha256.Size || len(signed) > maxMessage+sha256.Size {
		return nil, false
	}
	message = signed[:len(signed)-sha256.Size]
	return message, hmac.Equal(b.sign(message), signed)
}

// resend is a message that is sent again.
type resend struct {
	signed []byte
	ticks  int // since it was first sent
}

// Run sends messages and calls receive for those of other instances, and for its own, until ctx
// ends.
func (b *Broadcast) Run(ctx context.Context, client redis.UniversalClient, log *slog.Logger, receive func(message []byte)) {
	sub := client.Subscribe(ctx, b.channel)
	defer func() { _ = sub.Close() }()
	messages := sub.Channel()
	tick := time.NewTicker(resendTick)
	defer tick.Stop()
	var again []*resend
	for {
		select {
		case <-ctx.Done():
			return
		case m, ok := <-messages:
			if !ok {
				return
			}
			if message, ok := b.open([]byte(m.Payload)); ok {
				receive(message)
			} else {
				log.Warn("ignored a message that no instance has signed", "channel", b.channel)
			}
		case signed := <-b.out:
			b.publish(ctx, client, signed, log)
			if len(again) < maxUnsent {
				again = append(again, &resend{signed: signed})
			}
		case <-tick.C:
			again = b.resendAll(ctx, client, again, log)
		}
	}
}

// resendAll sends what is due, and returns what will be due later.
func (b *Broadcast) resendAll(ctx context.Context, client redis.UniversalClient, all []*resend, log *slog.Logger) (left []*resend) {
	for _, r := range all {
		r.ticks++
		for _, due := range resendAfter {
			if r.ticks == due {
				b.publish(ctx, client, r.signed, log)
			}
		}
		if r.ticks < resendAfter[len(resendAfter)-1] {
			left = append(left, r)
		}
	}
	return left
}

func (b *Broadcast) publish(ctx context.Context, client redis.UniversalClient, signed []byte, log *slog.Logger) {
	callCtx, cancel := context.WithTimeout(ctx, heartbeatEvery)
	defer cancel()
	if err := client.Publish(callCtx, b.channel, signed).Err(); err != nil {
		log.Debug("message was not sent", "channel", b.channel, "error", err)
	}
}
