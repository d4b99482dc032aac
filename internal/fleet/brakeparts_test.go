package fleet_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/fleet"
	"github.com/millpond-go/millpond/middleware/header"
)

func TestNamesOfBrakes(t *testing.T) {
	t.Parallel()
	for name, problem := range map[string]string{
		"payments":               "",
		"Zahlungen, täglich":     "",
		strings.Repeat("a", 200): "",
		"":                       "it is empty",
		strings.Repeat("a", 201): "it has 201 bytes, 200 are allowed",
		"a\xff":                  "it is not UTF-8",
		"a\nb":                   "U+000A is not printable",
		"a\x1b[2J":               "U+001B is not printable",
	} {
		err := fleet.CheckName(name)
		if problem == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorIs(t, err, fleet.ErrName)
		require.ErrorContains(t, err, problem)
	}
}

func TestATokenIsPersistentAndStopped(t *testing.T) {
	t.Parallel()
	since := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	msg, err := fleet.Token("id-1", "shop@host/7", header.BrakeState{Name: "payments", Since: since})
	require.NoError(t, err)
	require.Equal(t, amqp.Publishing{
		ContentType: "application/json", DeliveryMode: amqp.Persistent, MessageId: "id-1",
		Type: "stopped", AppId: "shop@host/7",
		Body: []byte(`{"name":"payments","stopped":true,"since":"2026-03-01T12:00:00Z"}`),
	}, msg)
}

// The name is the one of the exchange that the news came by, because any client can publish there.
func TestRead(t *testing.T) {
	t.Parallel()
	state, ok := fleet.Read("payments", amqp.Delivery{Body: []byte(`{"name":"other","stopped":true}`)})
	require.True(t, ok)
	require.Equal(t, header.BrakeState{Name: "payments", Stopped: true}, state)
	for _, body := range []string{"", "x", `[]`, `{"since":"yesterday"}`} {
		state, ok = fleet.Read("payments", amqp.Delivery{Body: []byte(body)})
		require.False(t, ok, body)
		require.Zero(t, state, body)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"stopped":true,"since":"2026-03-01T12:00:00Z","rate":1.5}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		state, ok := fleet.Read("payments", amqp.Delivery{Body: body})
		if !ok {
			require.Zero(t, state)
			return
		}
		require.Equal(t, "payments", state.Name)
		_, err := json.Marshal(state)
		require.NoError(t, err)
	})
}

func TestMergeOfTwoTokens(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	early := header.BrakeState{By: "early", Since: noon}
	late := header.BrakeState{By: "late", Since: noon.Add(time.Hour)}
	byHand := header.BrakeState{By: "hand", Manual: true, Since: noon.Add(-time.Hour)}
	byHandLate := header.BrakeState{By: "later hand", Manual: true, Since: noon}
	for name, c := range map[string]struct{ a, b, want header.BrakeState }{
		"the newer one":          {early, late, late},
		"by hand before another": {late, byHand, byHand},
		"the newer one by hand":  {byHand, byHandLate, byHandLate},
		"one alone":              {header.BrakeState{}, early, early},
	} {
		require.Equal(t, c.want, fleet.Merge(c.a, c.b), name)
		require.Equal(t, c.want, fleet.Merge(c.b, c.a), name)
	}
}
