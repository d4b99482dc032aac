package page_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/cmd/millpond/page"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/topology/operate"
)

// Given a brake that an operator has stopped, then the first page says since when, by whom and why,
// in harmless text, until it is started.
func TestPageShowsAStoppedBrake(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	v := h.open(nil)
	require.NotContains(t, v.get("/").text(), "Brake")
	o := rig.OpenOperator(t, h.URL)
	_, err := o.StopBrake(t.Context(), "payments", "anna", "<b>it</b> moves", time.Hour)
	require.NoError(t, err)
	var text string
	rig.WaitFor(t, "the page to show the stop", func() bool {
		text = v.get("/").text()
		return strings.Contains(text, "Brake payments is stopped by hand.")
	})
	require.Regexp(t, `is stopped by hand. Since \d{4}-\S+ \S+Z by anna: `+
		`&lt;b&gt;it&lt;/b&gt; moves. Until \d{4}-\S+ \S+Z , or millpond brake start \.`, text)
	require.Contains(t, text, "Its queues are not consumed, and their messages stay.")
	require.NoError(t, o.StartBrake(t.Context(), "payments", "anna"))
	rig.WaitFor(t, "the page to show the start", func() bool {
		text = v.get("/").text()
		return !strings.Contains(text, "Brake")
	})
	require.Contains(t, text, "queues in trouble")
}

// Given a page whose user may not ask for brakes over AMQP, then it says so and shows the rest.
func TestPageWithoutAMQPShowsTheRest(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	o := rig.OpenOperator(t, h.URL)
	_, err := o.StopBrake(t.Context(), "payments", "anna", "", time.Hour)
	require.NoError(t, err)
	refused := operate.WithCredentials(func(context.Context) (user, password string, err error) {
		return "guest", "wrong", nil
	})
	v := h.open(func(c *page.Config) { c.Operator = []operate.Option{refused} })
	rig.WaitFor(t, "the page to count", func() bool {
		return strings.Contains(v.get("/").text(), "stopped brakes could not be read")
	})
	require.Contains(t, v.get("/").text(), "queues 3")
}
