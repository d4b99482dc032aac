package link

import (
	"crypto/tls"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
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
	got := Config{AMQP: user, Name: "ours"}.amqpConfig()
	assert.Equal(t, "v", got.Vhost)
	assert.Equal(t, 4096, got.FrameSize)
	assert.Equal(t, amqp.Table{"product": "shop", "connection_name": "ours"}, got.Properties)
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
	assert.Equal(t, "theirs", Config{AMQP: user, Name: "ours"}.amqpConfig().Properties["connection_name"])
}

func TestConfigWithoutOneOfTheUser(t *testing.T) {
	t.Parallel()
	got := Config{Name: "ours"}.amqpConfig()
	assert.Equal(t, "ours", got.Properties["connection_name"])
	assert.Equal(t, "golang", got.Properties["platform"])
	assert.Nil(t, got.TLSClientConfig)

	got = Config{}.amqpConfig()
	assert.NotContains(t, got.Properties, "connection_name")
}

func TestTLSConfigOfItsOwnGoesFirst(t *testing.T) {
	t.Parallel()
	cfg := Config{
		AMQP: &amqp.Config{TLSClientConfig: &tls.Config{ServerName: "a"}},
		TLS:  &tls.Config{ServerName: "b"},
	}
	got := cfg.amqpConfig()
	assert.Equal(t, "b", got.TLSClientConfig.ServerName)
	assert.NotSame(t, cfg.TLS, got.TLSClientConfig)
}
