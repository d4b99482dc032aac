package link

import (
	"crypto/tls"
	"math"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestConfigOfTheUserIsCopied(t *testing.T) {
	t.Parallel()
	user := &amqp.Config{
		Vhost:           "v",
		FrameSize:       4096,
		Properties:      amqp.Table{"product": "shop"},
		Recovery:        &amqp.Recovery{},
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13},
	}
	got := Config{AMQP: user, Name: "name"}.amqpConfig()
	assert.Equal(t, "v", got.Vhost)
	assert.Equal(t, 4096, got.FrameSize)
	assert.Equal(t, amqp.Table{"product": "shop", "connection_name": "name"}, got.Properties)
	assert.Nil(t, got.Recovery, "two would reconnect")
	assert.NotSame(t, user.TLSClientConfig, got.TLSClientConfig)
	assert.Equal(t, uint16(tls.VersionTLS13), got.TLSClientConfig.MinVersion)

	got.Properties["capabilities"] = true
	assert.Equal(t, amqp.Table{"product": "shop"}, user.Properties)
	assert.NotNil(t, user.Recovery)
}

func TestConnectionNameOfTheUserStays(t *testing.T) {
	t.Parallel()
	user := &amqp.Config{Properties: amqp.Table{"connection_name": "theirs"}}
	got := Config{AMQP: user, Name: "name"}.amqpConfig()
	assert.Equal(t, "theirs", got.Properties["connection_name"])
}

func TestConfigWithoutAConfigOfTheUser(t *testing.T) {
	t.Parallel()
	got := Config{Name: "name"}.amqpConfig()
	assert.Equal(t, "name", got.Properties["connection_name"])
	assert.Equal(t, "golang", got.Properties["platform"])
	assert.Nil(t, got.TLSClientConfig)
	assert.NotContains(t, Config{}.amqpConfig().Properties, "connection_name")
}

func TestTLSFieldGoesBeforeTheConfigOfTheUser(t *testing.T) {
	t.Parallel()
	cfg := Config{
		AMQP: &amqp.Config{TLSClientConfig: &tls.Config{ServerName: "a"}},
		TLS:  &tls.Config{ServerName: "b"},
	}
	got := cfg.amqpConfig()
	assert.Equal(t, "b", got.TLSClientConfig.ServerName)
	assert.NotSame(t, cfg.TLS, got.TLSClientConfig)
}

const ms, second = time.Millisecond, time.Second

func TestBackoffPauses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		backoff Backoff         // Initial, Max, Multiplier, Randomization
		want    []time.Duration // after the first failed dial, the second, …
	}{
		"watermill-amqp's default": {
			Backoff{500 * ms, 60 * second, 1.5, 0}, list(500, 750, 1125, 1687.5),
		},
		"up to the maximum and no further": {
			Backoff{100 * ms, second, 3, 0}, list(100, 300, 900, 1000, 1000),
		},
		"constant": {Backoff{200 * ms, second, 1, 0}, list(200, 200, 200)},
		"a multiplier under one does not shrink it": {
			Backoff{200 * ms, second, 0.5, 0}, list(200, 200),
		},
		"a maximum under the initial pause": {Backoff{200 * ms, 50 * ms, 2, 0}, list(200, 200)},
		"the zero value does not spin":      {Backoff{}, list(10, 10, 10)},
		"a maximum under the least pause":   {Backoff{ms, 2 * ms, 2, 0}, list(10, 10, 10)},
		"negative":                          {Backoff{-second, -second, -2, -1}, list(10, 10)},
		"infinite multiplier": {
			Backoff{100 * ms, second, math.Inf(1), 0}, list(100, 1000, 1000),
		},
		"no numbers": {Backoff{100 * ms, second, math.NaN(), math.NaN()}, list(100, 100)},
	} {
		for failed, want := range c.want {
			assert.Equal(t, want, c.backoff.pause(failed), "%s: after %d failed dials", name, failed)
		}
	}
	for _, failed := range []int{13, 100, 5000, math.MaxInt} {
		assert.Equal(t, 7*second, Backoff{ms, 7 * second, 2, 0}.pause(failed), failed)
	}
}

// list returns durations from milliseconds.
func list(milliseconds ...float64) (all []time.Duration) {
	for _, n := range milliseconds {
		all = append(all, time.Duration(n*float64(ms)))
	}
	return all
}

func TestBackoffSpreads(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		backoff     Backoff
		least, most time.Duration
	}{
		"by a half":                 {Backoff{second, time.Minute, 0, 0.5}, 500 * ms, 1500 * ms},
		"never down to a spin":      {Backoff{20 * ms, 0, 0, 1}, 10 * ms, 40 * ms},
		"by no more than all of it": {Backoff{second, 0, 0, 9}, 10 * ms, 2 * second},
		"without overflow": {
			Backoff{math.MaxInt64, math.MaxInt64, 0, 1}, 10 * ms, math.MaxInt64,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			low, high := time.Duration(math.MaxInt64), time.Duration(math.MinInt64)
			for range 20000 {
				d := c.backoff.pause(0)
				low, high = min(low, d), max(high, d)
			}
			assert.GreaterOrEqual(t, low, c.least)
			assert.LessOrEqual(t, high, c.most)
			assert.Less(t, low+(high-low)/10, high, "hardly any spread")
		})
	}
}

func TestClusterAdmitsOneAtATime(t *testing.T) {
	t.Parallel()
	var c Cluster
	require.NoError(t, c.enter(""), "a broker that sends no name")
	require.NoError(t, c.enter("a"))
	require.NoError(t, c.enter("a"))
	require.ErrorIs(t, c.enter("b"), ErrOtherCluster)
	require.NoError(t, c.enter(""))
	for range 4 {
		c.leave()
	}
	require.NoError(t, c.enter("b"), "when no connection is left, another cluster is admitted")
	require.ErrorIs(t, c.enter("a"), ErrOtherCluster)
	var none *Cluster
	require.NoError(t, none.enter("a"))
	require.NoError(t, none.enter("b"))
	none.leave()
}
