package audit_test

import (
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/audit"
)

// A queue that must hold rejected messages for 1 s to 1 min. The facts about argument and policy
// are F14.
func TestAQueueThatHoldsRejectedMessages(t *testing.T) {
	t.Parallel()
	plan := audit.Plan{
		Queue: "orders", DeadKey: "orders.dlq", RejectMin: time.Second, RejectMax: time.Minute,
	}
	type set map[string]any // of a policy, and with x- of arguments
	retry := func(kind string, least, most int) set {
		return set{
			"delayed-retry-type": kind, "delayed-retry-min": least, "delayed-retry-max": most,
		}
	}
	good, off := retry("failed", 1000, 60000), retry("disabled", 0, 0)
	for name, c := range map[string]struct {
		args, policy set
		kind         string
		version      audit.Version
		missing      string // of the dead-letter target
		want         string // "" for a queue that is as it must be
	}{
		"arguments": {args: good},
		"of nacks, too": {
			args: retry("all", 1000, 60000), want: "to failed",
		},
		"of nacks, too, by a policy": {
			args: good, policy: set{"delayed-retry-type": "all"},
			want: "type all holds messages that are given back, too",
		},
		"a policy": {policy: good},
		"both": {
			args: retry("all", 1000, 90000), policy: retry("failed", 2000, 60000),
		},
		"a policy takes it away": {args: good, policy: off, want: "it holds none"},
		"a policy makes it less": {
			args: good, policy: retry("failed", 500, 60000), want: "holds them for 500ms to 1m0s",
		},
		"of nacks alone": {args: retry("returned", 1000, 60000), want: "it holds none"},
		"neither":        {want: "it holds none"},
		"the longer delay alone": {
			args: set{"delayed-retry-type": "failed", "delayed-retry-max": 60000},
			want: "it holds none",
		},
		"the shorter delay alone": {
			args: set{"delayed-retry-type": "failed", "delayed-retry-min": 1000},
			want: "holds them for 1s to 1s",
		},
		"the plan's dead-letter queue, not declared yet": {args: good, missing: `queue "orders.dlq"`},
		"no dead-letter target": {
			args: good, missing: `queue "orders.dead"`, want: "may lower the limit at any time",
		},
		"a ttl": {
			args: set{
				"delayed-retry-type": "failed", "delayed-retry-min": 1000, "delayed-retry-max": 60000,
				"message-ttl": 600000,
			},
			want: "its message-ttl of 600000 ms takes rejected messages out of it",
		},
		"a ttl of a policy": {
			args: good, policy: set{"message-ttl": 5000}, want: "message-ttl of 5000 ms",
		},
		"a classic queue":     {args: good, kind: audit.Classic, want: "it is a classic queue"},
		"a broker before 4.3": {args: good, version: four, want: "RabbitMQ 4.0 ignores"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &audit.Facts{
				Kind: audit.Quorum, Arguments: amqp.Table{}, Policy: c.policy, Version: latest,
				DeadLetters: c.missing == "", Missing: c.missing,
			}
			for key, value := range c.args {
				f.Arguments["x-"+key] = value
			}
			if c.kind != "" {
				f.Kind = c.kind
			}
			if c.version != (audit.Version{}) {
				f.Version = c.version
			}
			require.NoError(t, f.RefuseRejects("orders", audit.Plan{}), "a plan without rejects")
			err, held := f.RefuseRejects("orders", plan), f.HeldRejects()
			if strings.Contains(c.want, "holds none") || c.version == four || c.kind == audit.Classic {
				require.Nil(t, held)
			}
			if c.want == "" {
				require.NoError(t, err)
				require.Equal(t, []time.Duration{time.Second, 60 * time.Second, time.Minute},
					[]time.Duration{held(1), held(60), held(61)})
				return
			}
			require.ErrorContains(t, err, c.want)
		})
	}
}
