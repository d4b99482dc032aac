package hold_test

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

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

func (t *tries) want(tb testing.TB, at ...time.Duration) {
	tb.Helper()
	if !reflect.DeepEqual(t.at, at) {
		tb.Errorf("tried at %v, want %v", t.at, at)
	}
}

func wantErr(t *testing.T, got error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(got, w) {
			t.Errorf("got error %v, want it to wrap %v", got, w)
		}
	}
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
	if err := hold.Do(t.Context(), hold.Options{Recovered: never}, task.try); err != nil {
		t.Fatal(err)
	}
	if len(task.at) != 1 {
		t.Errorf("tried %d times, want once", len(task.at))
	}
}

func TestPausesDoubleUpToFiveSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		task := failing(6)
		if err := hold.Do(t.Context(), hold.Options{}, task.try); err != nil {
			t.Fatal(err)
		}
		task.want(
			t, 0, 500*time.Millisecond, 1500*time.Millisecond, 3500*time.Millisecond,
			7500*time.Millisecond, 12500*time.Millisecond, 17500*time.Millisecond,
		)
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
				if took := time.Since(began); took != test.took {
					t.Errorf("took %v, want %v", took, test.took)
				}
				task.want(t, test.tried...)
				wantErr(t, err, test.want...)
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
		err := hold.Do(ctx, options, func() error {
			<-time.After(10 * time.Second)
			return nil
		})
		if err != nil {
			t.Errorf("the try succeeded, but got %v", err)
		}
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
				wantErr(t, err, errDown)
				reports = append(reports, held)
			},
			Recovered: func(tries int, held time.Duration) {
				if tries != 41 {
					t.Errorf("recovered at try %d, want 41", tries)
				}
				recovered = append(recovered, held)
			},
		}, task.try)
		if err != nil {
			t.Fatal(err)
		}
		want := []time.Duration{
			0, 62500 * time.Millisecond, 122500 * time.Millisecond, 182500 * time.Millisecond,
		}
		if !reflect.DeepEqual(reports, want) {
			t.Errorf("reported at %v, want %v", reports, want)
		}
		if want := []time.Duration{187500 * time.Millisecond}; !reflect.DeepEqual(recovered, want) {
			t.Errorf("recovered after %v, want %v", recovered, want)
		}
	})
}

func TestAnOutageIsTriedAtMostTwiceASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		task := failing(-1)
		_ = hold.Do(t.Context(), hold.Options{Until: time.Now().Add(10 * time.Minute)}, task.try)
		if len(task.at) < 100 {
			t.Errorf("gave up after %d tries", len(task.at))
		}
		for i := 1; i < len(task.at); i++ {
			if pause := task.at[i] - task.at[i-1]; pause < 500*time.Millisecond || pause > 5*time.Second {
				t.Errorf("pause %d was %v", i, pause)
			}
		}
	})
}
