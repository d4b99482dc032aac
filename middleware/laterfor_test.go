package middleware_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// comparing is an error that panics when it is compared.
type comparing struct{ error }

func (comparing) Is(error) bool { panic("compared") }

func TestWithLaterForSetsAside(t *testing.T) {
	t.Parallel()
	errOpen, errBusy := errors.New("open"), errors.New("busy")
	minute := middleware.WithSnoozeFor(time.Minute, errOpen, errBusy)
	for name, test := range map[string]struct {
		err   error
		more  []middleware.Option
		aside bool
		want  time.Duration
		class header.Class
	}{
		"the first":           {err: errOpen, aside: true, want: time.Minute},
		"the second":          {err: errBusy, aside: true, want: time.Minute},
		"wrapped":             {err: fmt.Errorf("sell: %w", errOpen), aside: true, want: time.Minute},
		"before a classifier": {err: errOpen, more: options{middleware.WithClassifier(middleware.PermanentErrors(errOpen))}, aside: true, want: time.Minute},
		"the first rule wins": {err: errOpen, more: options{middleware.WithSnoozeFor(time.Hour, errOpen)}, aside: true, want: time.Minute},
		"a second rule":       {err: errBoom, more: options{middleware.WithSnoozeFor(time.Hour, errBoom)}, aside: true, want: time.Hour},
		"a mark comes first":  {err: middleware.Permanent(errOpen), class: permanent},
		"another":             {err: errBoom, class: retryable, want: time.Second},
		"panics":              {err: comparing{errBoom}, class: retryable, want: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := handle(t, failsWith(test.err), append(options{minute}, test.more...)...)
			if aside := got.Notes.Snoozed > 0; aside != test.aside || got.Delay != test.want || got.Notes.Class != test.class {
				t.Errorf("set aside %v for %v, class %q; want %v, %v, %q", aside, got.Delay, got.Notes.Class, test.aside, test.want, test.class)
			}
		})
	}
}

func TestWithLaterForRefuses(t *testing.T) {
	t.Parallel()
	_, err := middleware.NewDelayedRetry(middlewaretest.NewBroker(), backoff.None{},
		middleware.WithSnoozeFor(0, errBoom), middleware.WithSnoozeFor(time.Second), middleware.WithSnoozeFor(time.Second, errBoom, nil))
	require.Error(t, err)
	for _, want := range []string{
		"WithSnoozeFor: 0s is not positive", "WithSnoozeFor: no errors are named", "WithSnoozeFor: error 1 is nil",
	} {
		assert.ErrorContains(t, err, want)
	}
}
