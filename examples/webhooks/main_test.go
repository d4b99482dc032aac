package main

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/examples/internal/webhook"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

func TestMain(m *testing.M) {
	testbroker.Main(m, func() error { return goleak.Find() })
}

// Given twenty deliveries, which have every story once, then none is lost and the queues are gone.
func TestDemoLosesNothing(t *testing.T) {
	t.Parallel()
	for strategy, kind := range map[string]string{
		"perqueue": "quorum", "shared": "classic", "perattempt": "classic", "levels": "quorum",
		"inorder": "quorum", "native": "quorum",
	} {
		t.Run(strategy+" "+kind, func(t *testing.T) {
			t.Parallel()
			url := testbroker.URL(t)
			if strategy == "native" {
				rig.Native(t, url, nativeMin, nativeMax) // skips where the broker ignores the arguments
			}
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), []string{
				"--url", url, "--strategy", strategy, "--type", kind, "--deliveries", "20", "--seed", "3",
			}, &stdout, &stderr)
			require.Empty(t, stderr.String())
			require.Zero(t, code, stdout.String())
			require.True(t, strings.HasSuffix(stdout.String(),
				"\npublished 20  delivered 17  dead-lettered 3  lost 0\n"), stdout.String())
			require.NotContains(t, stdout.String(), "\x1b")

			queue := strings.Fields(stdout.String())[1]
			plan, err := strategies[strategy](topology.QueueType(kind), queue).Plan(queue,
				slices.Concat(webhook.Policy, webhook.NetworkPolicy, webhook.RetryAfters))
			require.NoError(t, err)
			require.Greater(t, len(plan.Queues), 3)
			for _, deleted := range append(plan.Queues, topology.Queue{Name: queue}) {
				require.Equal(t, -1, testbroker.Depth(t, url, deleted.Name), deleted.Name)
			}
			for _, deleted := range plan.Exchanges {
				err := testbroker.Channel(t, url).ExchangeDeclarePassive(deleted.Name, "direct", true, false,
					false, false, nil)
				require.ErrorContains(t, err, "NOT_FOUND")
			}
		})
	}
}

// Given a broker with the delayed-message plugin, then the demo ends as with every strategy.
func TestDemoOnTheDelayedExchange(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t, testbroker.DelayedPlugin(t))
	var out bytes.Buffer
	code := run(t.Context(), []string{
		"--url", node.URL(), "--strategy", "delayed", "--deliveries", "20", "--seed", "3",
	}, &out, &out)
	require.Contains(t, out.String(), "published 20  delivered 17  dead-lettered 3  lost 0")
	require.Zero(t, code)
}

// cutter calls cut when a text is written.
type cutter struct {
	bytes.Buffer
	text string
	cut  func()
}

func (c *cutter) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(c.text)) {
		c.cut()
	}
	return c.Buffer.Write(p)
}

func TestInterruptedDemoSaysWhatIsUndecided(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stderr bytes.Buffer
	stdout := cutter{text: "  500ms  ", cut: cancel} // the first second attempt
	require.Equal(t, 1, run(ctx, []string{"--url", url, "--deliveries", "12"}, &stdout, &stderr))
	require.Equal(t, "webhooks: interrupted\n", stderr.String())
	require.Contains(t, stdout.String(), "  lost 0  still in a queue ")
}

func TestArguments(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		args []string
		code int
		says string
	}{
		"help": {[]string{"--help"}, 0, "Usage: webhooks"},
		"unknown strategy": {
			[]string{"--strategy", "own"},
			2,
			`unknown strategy "own": perqueue, perattempt, shared, levels, delayed, native or`,
		},
		"unknown type": {[]string{"--type", "stream"}, 2, `unknown type "stream": quorum or classic`},
		"too many":     {[]string{"--deliveries", "1001"}, 2, "1001 deliveries: from 1 to 1000"},
		"no broker": {
			[]string{"--url", "amqp://guest:secret@127.0.0.1:1/"},
			1,
			"connect to RabbitMQ at 127.0.0.1:1",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			require.Equal(t, test.code, run(t.Context(), test.args, &stdout, &stderr))
			require.Empty(t, stdout.String())
			require.Contains(t, stderr.String(), test.says)
			require.NotContains(t, stderr.String(), "secret")
		})
	}
}
