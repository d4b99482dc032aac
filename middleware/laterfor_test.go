package middleware_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
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
		"before a classifier": {err: errOpen, more: []middleware.Option{middleware.WithClassifier(middleware.PermanentErrors(errOpen))}, aside: true, want: time.Minute},
		"the first rule wins": {err: errOpen, more: []middleware.Option{middleware.WithSnoozeFor(time.Hour, errOpen)}, aside: true, want: time.Minute},
		"a second rule":       {err: errBoom, more: []middleware.Option{middleware.WithSnoozeFor(time.Hour, errBoom)}, aside: true, want: time.Hour},
		"a mark comes first":  {err: middleware.Permanent(errOpen), class: permanent},
		"another":             {err: errBoom, class: retryable, want: time.Second},
		"panics":              {err: comparing{errBoom}, class: retryable, want: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := handle(t, failsWith(test.err), append([]middleware.Option{minute}, test.more...)...)
			if aside := got.State.Snoozed > 0; aside != test.aside || got.Delay != test.want || got.State.Class != test.class {
				t.Errorf("set aside %v for %v, class %q; want %v, %v, %q", aside, got.Delay, got.State.Class, test.aside, test.want, test.class)
			}
		})
	}
}

func TestWithLaterForRefuses(t *testing.T) {
	t.Parallel()
	_, err := middleware.NewDelayedRetry(middlewaretest.NewBroker(), backoff.None{},
		middleware.WithSnoozeFor(0, errBoom), middleware.WithSnoozeFor(time.Second), middleware.WithSnoozeFor(time.Second, errBoom, nil))
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		"WithSnoozeFor: 0s is not positive", "WithSnoozeFor: no errors are named", "WithSnoozeFor: error 1 is nil",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in:\n%v", want, err)
		}
	}
}
