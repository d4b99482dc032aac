package observe_test

import (
	"context"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millpond-go/millpond/internal/observe"
)

func TestObserversAreToldInOrder(t *testing.T) {
	t.Parallel()
	var got []string
	name := func(name string) func(context.Context, string) {
		return func(_ context.Context, e string) { got = append(got, name+" "+e) }
	}
	observe.NewList(nil, name("first"), name("second")).Tell(t.Context(), "event")
	if want := []string{"first event", "second event"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestNobodyObserves(t *testing.T) {
	t.Parallel()
	list := observe.NewList[string](nil)
	if list != nil {
		t.Error("an empty list is not nil")
	}
	list.Tell(t.Context(), "event")
}

// An observer that always panics is reported once a minute. The others are told as before.
func TestPanicsAreContained(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var values []any
		told := 0
		list := observe.NewList(func(value any) { values = append(values, value) },
			func(_ context.Context, e int) { panic(e) },
			func(context.Context, int) { told++ },
		)
		for i := range 61 {
			list.Tell(t.Context(), i)
			time.Sleep(time.Second)
		}
		if want := []any{0, 60}; told != 61 || !reflect.DeepEqual(values, want) {
			t.Errorf("told %d times, reported %v, want %v", told, values, want)
		}
	})
}
