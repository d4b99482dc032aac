//go:build unix

package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

func TestMain(m *testing.M) {
	maybeServe()
	testbroker.Main(m, func() error { return goleak.Find() })
}

// short returns a run of seconds in which the active instance is killed, frozen and cut off, and
// the broker crashes.
func short(t *testing.T) config {
	t.Helper()
	testbroker.RequireNode(t)
	return config{
		Length: 18 * time.Second, Seed: 1, Keys: 60, Rate: 150, Instances: 3, Concurrency: 32,
		Percent: 10, Dead: 2, Heartbeat: time.Second, Patience: 20 * time.Second, Memory: true,
		Delays: []time.Duration{
			20 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 300 * time.Millisecond,
			time.Second,
		},
		Schedule: []planned{
			{fault: killActive, pause: time.Second},
			{fault: freezeActive, pause: time.Second, hold: 4 * time.Second},
			{fault: cutActive, pause: time.Second},
			{fault: crashBroker, pause: time.Second},
		},
		Out: t.Output(),
	}
}

// Given the option, then no message overtakes another one of its key, and none is lost.
func TestMessagesOfAKeyStayInOrderWhileEverythingBreaks(t *testing.T) {
	t.Parallel()
	c := short(t)
	r, err := do(t.Context(), c)
	require.NoError(t, err)
	r.print(c)
	assert.Empty(t, r.problems())
	for _, p := range c.Schedule {
		assert.Equal(t, 1, r.Faults[p.fault], p.fault)
	}
	assert.Empty(t, r.Failed)
	assert.Greater(t, r.report.Tokens, 1, "other instances took over")
	assert.Empty(t, r.Kept)
}

// Given no option, then failed messages are overtaken, and nothing else is wrong.
func TestInversionsAreFoundWithoutTheOption(t *testing.T) {
	t.Parallel()
	c := short(t)
	c.Unordered = true
	r, err := do(t.Context(), c)
	require.NoError(t, err)
	r.print(c)
	defer func() { require.NoError(t, os.RemoveAll(r.Kept)) }()
	assert.NotEmpty(t, r.Inversions)
	assert.Empty(t, r.Lost)
	for _, p := range c.Schedule {
		assert.Equal(t, 1, r.Faults[p.fault], p.fault)
	}
	assert.Empty(t, r.Failed)
}

func TestBadArgumentsStartNoRun(t *testing.T) {
	t.Parallel()
	for _, args := range []string{
		"-length 0s", "-length -1s", "-keys 0", "-rate 0", "-instances 0", "-seed x", "-percent 200",
		"-delays 1s", "-delays x", "-bug nothing", "-rounds 0 -speed",
		"-block -unordered",
	} {
		assert.Equal(t, 2, run(strings.Fields(args), t.Output()), args)
	}
}
