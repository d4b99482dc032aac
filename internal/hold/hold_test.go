package hold_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/hold"
)

var errDown = errors.New("broker is down")

// tries is a task that fails the first n times (always if n < 0) and records
// when it was tried.
type tries struct {
	n     int
	began time.Time
	at    []time.Duration
}

func failing(n int) *tries { return &tries{n: n, began: time.Now()} }

func (t *tries) try() error {
	t.at = append(t.at, time.Since(t.began))
	if t.n < 0 || len(t.at) <= t.n {
		return errDown
	}
	return nil
}

func after(d time.Duration) <-chan struct{} {
	c := make(chan struct{})
	time.AfterFunc(d, func() { close(c) })
	return c
}

func closedChan() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func TestFirstTrySucceeds(t *testing.T) {
	t.Parallel()
	task := failing(0)
	never := func(int, time.Duration) { t.Error("there was nothing to recover from") }
	require.NoError(t, hold.Do(t.Context(), hold.Options{Recovered: never}, task.try))
	assert.Len(t, task.at, 1)
}

func TestPausesDoubleUpToFiveSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		task := failing(6)
		require.NoError(t, hold.Do(t.Context(), hold.Options{}, task.try))
		assert.Equal(t, []time.Duration{
			0, 500 * time.Millisecond, 1500 * time.Millisecond, 3500 * time.Millisecond,
			7500 * time.Millisecond, 12500 * time.Millisecond, 17500 * time.Millisecond,
		}, task.at)
	})
}

func TestEndsOfAHold(t *testing.T) {
	t.Parallel()
	const first, second, third = 0, 500 * time.Millisecond, 1500 * time.Millisecond
	cancelled := func() (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		return ctx, cancel
	}
	for name, test := range map[string]struct {
		ctx     func() (context.Context, context.CancelFunc)
		options func() hold.Options
		tried   []time.Duration
		took    time.Duration
		want    []error
	}{
		"gone before the first try": {
			options: func() hold.Options { return hold.Options{Gone: closedChan()} },
			want:    []error{hold.ErrGone},
		},
		"gone in a pause": {
			options: func() hold.Options { return hold.Options{Gone: after(time.Second)} },
			tried:   []time.Duration{first, second},
			took:    time.Second,
			want:    []error{hold.ErrGone, errDown},
		},
		"context done before the first try": {
			ctx:  cancelled,
			want: []error{hold.ErrGone, context.Canceled},
		},
		"context done in a pause": {
			ctx: func() (context.Context, context.CancelFunc) {
				return context.WithTimeout(context.Background(), 2*time.Second)
			},
			tried: []time.Duration{first, second, third},
			took:  2 * time.Second,
			want:  []error{hold.ErrGone, errDown, context.DeadlineExceeded},
		},
		"stopped before the first try, which is made all the same": {
			options: func() hold.Options { return hold.Options{Stop: closedChan()} },
			tried:   []time.Duration{first},
			want:    []error{hold.ErrStopped, errDown},
		},
		"stopped in a pause": {
			options: func() hold.Options { return hold.Options{Stop: after(time.Second)} },
			tried:   []time.Duration{first, second},
			took:    time.Second,
			want:    []error{hold.ErrStopped, errDown},
		},
		"limit passed before the first try, which is made all the same": {
			options: func() hold.Options { return hold.Options{Until: time.Now().Add(-time.Hour)} },
			tried:   []time.Duration{first},
			want:    []error{hold.ErrLimit, errDown},
		},
		"limit reached: no pause that would end after it": {
			options: func() hold.Options { return hold.Options{Until: time.Now().Add(3 * time.Second)} },
			tried:   []time.Duration{first, second, third},
			took:    third,
			want:    []error{hold.ErrLimit, errDown},
		},
		"a try may begin at the very limit": {
			options: func() hold.Options { return hold.Options{Until: time.Now().Add(third)} },
			tried:   []time.Duration{first, second, third},
			took:    third,
			want:    []error{hold.ErrLimit, errDown},
		},
		"final": {
			options: func() hold.Options {
				return hold.Options{Final: func(err error) bool { return errors.Is(err, errDown) }}
			},
			tried: []time.Duration{first},
			want:  []error{errDown},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(context.Background())
				if test.ctx != nil {
					ctx, cancel = test.ctx()
				}
				defer cancel()
				var options hold.Options
				if test.options != nil {
					options = test.options()
				}
				task := failing(-1)
				began := time.Now()
				err := hold.Do(ctx, options, task.try)
				assert.Equal(t, test.took, time.Since(began))
				assert.Equal(t, test.tried, task.at)
				for _, want := range test.want {
					assert.ErrorIs(t, err, want)
				}
			})
		})
	}
}

func TestARunningTryIsFinished(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		options := hold.Options{Gone: after(time.Second), Stop: after(time.Second)}
		assert.NoError(t, hold.Do(ctx, options, func() error {
			<-time.After(10 * time.Second)
			return nil
		}))
	})
}

func TestALongOutageIsReportedOnceAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var reports []time.Duration
		var recovered []time.Duration
		task := failing(40)
		err := hold.Do(t.Context(), hold.Options{
			Failing: func(err error, _ int, held time.Duration) {
				assert.ErrorIs(t, err, errDown)
				reports = append(reports, held)
			},
			Recovered: func(tries int, held time.Duration) {
				assert.Equal(t, 41, tries)
				recovered = append(recovered, held)
			},
		}, task.try)
		require.NoError(t, err)
		assert.Equal(t, []time.Duration{
			0, 62500 * time.Millisecond, 122500 * time.Millisecond, 182500 * time.Millisecond,
		}, reports)
		assert.Equal(t, []time.Duration{187500 * time.Millisecond}, recovered)
	})
}
