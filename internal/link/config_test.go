package link_test

import (
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/link"
)

func TestCheckURLAccepts(t *testing.T) {
	t.Parallel()
	for url, address := range map[string]string{
		"amqp://":                          `localhost:5672 vhost "/"`,
		"amqp://host":                      `host:5672 vhost "/"`,
		"amqps://host/":                    `host:5671 vhost "/"`,
		"amqp://user@host":                 `host:5672 vhost "/"`,
		"amqp://user:pass@host:1234/v":     `host:1234 vhost "v"`,
		"amqp://u:p%2Fs%40s%3A%23@host/v":  `host:5672 vhost "v"`,
		"amqp://u:p@host/%2Fv%40w":         `host:5672 vhost "/v@w"`,
		"amqp://u:p@[::1]:5672/":           `::1:5672 vhost "/"`,
		"amqp:///v":                        `localhost:5672 vhost "v"`,
		"amqp://u:p@host:1/v?heartbeat=10": `host:1 vhost "v"`,
		"amqp://u:p@ss@host":               `host:5672 vhost "/"`, // not pretty, but unambiguous
	} {
		assert.NoError(t, link.CheckURL(url), url)
		assert.Equal(t, address, link.Address(url), url)
	}
}

func TestCheckURLNeverQuotesAPassword(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"amqp://user:hunter/two2@host", "amqp://user:hunter/two2@host:5672/v",
		"amqp://user:4711/two2@host", // parses as host user, port 4711
		"amqp://user:4711?two2@host", "amqp://user:4711#two2@host",
		"amqp://user:hunter@two2/hunter@host", "amqp://user:hunter?two2@host",
		"amqp://user:hunter#two2@host", "amqp://user:hunter two2@host", " amqp://user:hunter@host",
		"amqp://user:hunter\ttwo2@host", "amqp://user:hunter\ntwo2@host",
		"amqp://user:hunter\x00two2@host", "amqp://user:hunter%two2@host",
		"amqp://user:hunter%zztwo2@host", "amqp://user:hunter[two2@host",
		"amqp://user:hunter\"<two2>@host:x", "amqp://user:hunter\xfftwo2@ho st",
		"http://user:hunter@host", "AMQPX://user:hunter@host", "user:hunter@host:5672",
		"//user:hunter@host:5672", "amqp:user:hunter@host", "amqp:/user:hunter@host",
		"amqp:///user:hunter@host", "amqp://user:hunter@host:port", "amqp://user:hunter@host:0",
		"amqp://user:hunter@host:-1", "amqp://user:hunter@host:65536",
		"amqp://user:hunter@host:99999999999999999999", "amqp://user:hunter",
		"amqp://user:99471199471199471199", "amqp://user:hunter@[::1",
		"amqp://user:hunter@host?heartbeat=hunter", "amqp://user:hunter@host?channel_max=-hunter",
		"amqp://user:hunter@host?connection_timeout=hunter", ":hunter:", "hunter", "%hunter",
	} {
		err := link.CheckURL(url)
		if !assert.Error(t, err, url) {
			continue
		}
		_, openErr := link.Open(t.Context(), link.Config{
			URL: url, ConnectTimeout: time.Second, WriteTimeout: time.Second, Logger: watermill.NopLogger{},
		})
		require.Error(t, openErr, url)
		for _, text := range []string{err.Error(), openErr.Error()} {
			for _, secret := range []string{"hunter", "two2", "4711"} {
				assert.NotContains(t, text, secret, url)
			}
			assert.True(t, strings.HasPrefix(text, "AMQP URL is invalid: "), text)
		}
	}
}

func TestCheckURLOfNothingSaysWhatToSet(t *testing.T) {
	t.Parallel()
	assert.ErrorContains(t, link.CheckURL(""), "Connection.AmqpURI")
}

// Every URL that CheckURL lets through, amqp091-go understands.
func FuzzCheckURL(f *testing.F) {
	for _, url := range []string{
		"", "amqp://u:p@h:1/v", "amqps://h?heartbeat=1", "amqp://u:p/q@h", "amqp:u", "amqp://[::1]:5/%2f",
	} {
		f.Add(url)
	}
	f.Fuzz(func(t *testing.T, url string) {
		err := link.CheckURL(url)
		assert.False(t, (err == nil) == (link.Address(url) == "(invalid url)"),
			"CheckURL says %v, Address says %s", err, link.Address(url))
		if err != nil {
			return
		}
		uri, parseErr := amqp.ParseURI(url)
		assert.Nil(t, parseErr, "accepted %q: %v", url, parseErr)
		assert.False(t, uri.Port < 1 || uri.Port > 65535, "accepted %q with port %d", url, uri.Port)
	})
}
