package middleware_test

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

const correlation = wmiddleware.CorrelationIDMetadataKey

// setting returns a handler that sets the metadata and fails.
func setting(metadata map[string]string, err error) message.HandlerFunc {
	return middlewaretest.Consumer(func(msg *message.Message) error {
		maps.Copy(msg.Metadata, metadata)
		return err
	})
}

func TestMetadataThatIsKept(t *testing.T) {
	t.Parallel()
	keep := middleware.WithKeptMetadata
	for name, test := range map[string]struct {
		options []middleware.Option
		set     map[string]string
		want    map[string]string
	}{
		"none is there":             {nil, nil, nil},
		"by default":                {nil, map[string]string{correlation: "c-1", "tenant": "7"}, map[string]string{correlation: "c-1"}},
		"an option adds":            {options{keep("tenant")}, map[string]string{correlation: "c-1", "tenant": "7"}, map[string]string{correlation: "c-1", "tenant": "7"}},
		"two options add":           {options{keep("tenant"), keep("step")}, map[string]string{"tenant": "7", "step": "2"}, map[string]string{"tenant": "7", "step": "2"}},
		"named twice":               {options{keep("tenant", "tenant", correlation)}, map[string]string{"tenant": "7"}, map[string]string{"tenant": "7"}},
		"empty":                     {options{keep("tenant")}, map[string]string{"tenant": ""}, map[string]string{"tenant": ""}},
		"upper case is no broker's": {options{keep("X-Request-ID")}, map[string]string{"X-Request-ID": "7"}, map[string]string{"X-Request-ID": "7"}},
		"longest": {
			options{keep("k")},
			map[string]string{"k": strings.Repeat("v", 8<<10-1)},
			map[string]string{"k": strings.Repeat("v", 8<<10-1)},
		},
		"too long with its key": {
			options{keep("k")}, map[string]string{"k": strings.Repeat("v", 8<<10)}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, err := range []error{errBoom, middleware.Permanent(errBoom), middleware.Snooze(errBoom, time.Minute)} {
				call := handle(t, setting(test.set, err), test.options...)
				assert.Equal(t, test.want, call.Notes.Metadata)
				for key := range test.want {
					if _, written := call.Notes.Headers("orders")[key]; written {
						t.Errorf("%s is among the notes", key)
					}
				}
			}
		})
	}
}

func TestMetadataThatCannotBeKeptIsLogged(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		value string
		why   string
	}{
		"not UTF-8":      {"\xff", "not UTF-8"},
		"too long":       {strings.Repeat("v", 8<<10), "too long"},
		"far too long":   {strings.Repeat("v", 1<<20), "too long"},
		"with the other": {strings.Repeat("v", 8<<10-1), "too long"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			logger := watermill.NewCaptureLogger()
			call := handle(t, setting(map[string]string{correlation: "c-1", "k": test.value, "z": "26"}, errBoom),
				middleware.WithKeptMetadata("k", "z"), middleware.WithLogger(logger))
			assert.Equal(t, (map[string]string{correlation: "c-1", "z": "26"}), call.Notes.Metadata)
			lines := logger.Captured()[watermill.ErrorLogLevel]
			if len(lines) != 1 || lines[0].Msg != "Metadata is not kept" || lines[0].Fields["key"] != "k" || lines[0].Err.Error() != test.why {
				t.Errorf("logged %+v", lines)
			}
		})
	}
}

func TestKeysThatCannotBeKept(t *testing.T) {
	t.Parallel()
	for key, why := range map[string]string{
		"":                       `key "" is empty`,
		"x-death":                `key "x-death" belongs to the broker`,
		"CC":                     `key "CC" belongs to the broker`,
		"BCC":                    `key "BCC" belongs to the broker`,
		header.Failures:          `key "millpond-failures" belongs to this library`,
		"millpond-":              `key "millpond-" belongs to this library`,
		"\xff":                   `key "\xff" is not UTF-8`,
		strings.Repeat("k", 256): "is longer than 255 bytes",
	} {
		_, err := middleware.NewDelayedRetry(unused{}, tenfold, middleware.WithKeptMetadata("fine", key, strings.Repeat("k", 255)))
		if err == nil || !strings.Contains(err.Error(), "WithKeptMetadata: ") || !strings.Contains(err.Error(), why) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: got %v", key, err)
		}
	}
}

func TestKeptMetadataIsSeenByTheNextAttempt(t *testing.T) {
	t.Parallel()
	broker := middlewaretest.NewBroker()
	msg := newMessage(middleware.Delivery{})
	msg.Metadata.Set("tenant", "7")
	var seen []string
	result := broker.Run(newRetry(t, broker, middleware.WithKeptMetadata("step", "tenant")).Middleware(
		middlewaretest.Consumer(func(msg *message.Message) error {
			seen = append(seen, msg.Metadata["tenant"]+" "+msg.Metadata["step"]+" "+msg.Metadata["other"])
			delete(msg.Metadata, "tenant") // has no effect
			msg.Metadata["other"] = "lost"
			if len(seen) == 1 {
				msg.Metadata["step"] = "paid"
				return middleware.Snooze(errBoom, time.Minute)
			}
			delete(msg.Metadata, "step")
			return errBoom
		})), msg)
	assert.Equal(t, []string{"7  ", "7 paid ", "7 paid ", "7 paid "}, seen)
	if result.Attempts != 3 {
		t.Errorf("got %s", result)
	}
}

func TestKeptKeysAreNotSharedByTwoMiddlewares(t *testing.T) {
	t.Parallel()
	broker := middlewaretest.NewBroker()
	a := newRetry(t, broker, middleware.WithKeptMetadata("a"))
	newRetry(t, broker, middleware.WithKeptMetadata("b"))
	h := a.Middleware(setting(map[string]string{"a": "1", "b": "2"}, errBoom))
	acked(t, h, newMessage(middleware.Delivery{}))
	if got, want := broker.Calls()[0].Notes.Metadata, (map[string]string{"a": "1"}); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
