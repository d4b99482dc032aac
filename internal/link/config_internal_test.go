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

const ms = time.Millisecond

func TestBackoffPauses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		backoff Backoff
		want    []time.Duration // after the first failed dial, the second, …
	}{
		"watermill-amqp's default": {
			Backoff{Initial: 500 * ms, Max: 60 * time.Second, Multiplier: 1.5},
			[]time.Duration{500 * ms, 750 * ms, 1125 * ms, 1687500 * time.Microsecond},
		},
		"up to the maximum and no further": {
			Backoff{Initial: 100 * ms, Max: time.Second, Multiplier: 3},
			[]time.Duration{100 * ms, 300 * ms, 900 * ms, time.Second, time.Second},
		},
		"constant": {
			Backoff{Initial: 200 * ms, Max: time.Second, Multiplier: 1},
			[]time.Duration{200 * ms, 200 * ms, 200 * ms},
		},
		"a multiplier under one does not shrink it": {
			Backoff{Initial: 200 * ms, Max: time.Second, Multiplier: 0.5},
			[]time.Duration{200 * ms, 200 * ms},
		},
		"a maximum under the initial pause": {
			Backoff{Initial: 200 * ms, Max: 50 * ms, Multiplier: 2},
			[]time.Duration{200 * ms, 200 * ms},
		},
		"the zero value does not spin": {Backoff{}, []time.Duration{10 * ms, 10 * ms, 10 * ms}},
		"a maximum under the least pause": {
			Backoff{Initial: ms, Max: 2 * ms, Multiplier: 2},
			[]time.Duration{10 * ms, 10 * ms, 10 * ms},
		},
		"negative": {
			Backoff{Initial: -time.Second, Max: -time.Second, Multiplier: -2, Randomization: -1},
			[]time.Duration{10 * ms, 10 * ms},
		},
		"infinite multiplier": {
			Backoff{Initial: 100 * ms, Max: time.Second, Multiplier: math.Inf(1)},
			[]time.Duration{100 * ms, time.Second, time.Second},
		},
		"no numbers": {
			Backoff{Initial: 100 * ms, Max: time.Second, Multiplier: math.NaN(), Randomization: math.NaN()},
			[]time.Duration{100 * ms, 100 * ms},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for failed, want := range c.want {
				assert.Equal(t, want, c.backoff.pause(failed), "after %d failed dials", failed)
			}
		})
	}
}

func TestBackoffStaysAtItsMaximumForEver(t *testing.T) {
	t.Parallel()
	b := Backoff{Initial: time.Millisecond, Max: 7 * time.Second, Multiplier: 2}
	for _, failed := range []int{13, 100, 5000, math.MaxInt} {
		assert.Equal(t, 7*time.Second, b.pause(failed), "after %d failed dials", failed)
	}
}

func TestBackoffSpreads(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		backoff     Backoff
		least, most time.Duration
	}{
		"by a half": {
			Backoff{Initial: time.Second, Max: time.Minute, Randomization: 0.5}, 500 * ms, 1500 * ms,
		},
		"never down to a spin": {Backoff{Initial: 20 * ms, Randomization: 1}, 10 * ms, 40 * ms},
		"by no more than all of it": {
			Backoff{Initial: time.Second, Randomization: 9}, 10 * ms, 2000 * ms,
		},
		"without overflow": {
			Backoff{Initial: math.MaxInt64, Max: math.MaxInt64, Randomization: 1}, 10 * ms, math.MaxInt64,
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
