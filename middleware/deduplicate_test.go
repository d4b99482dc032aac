package middleware_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

func TestDeduplicationKey(t *testing.T) {
	t.Parallel()
	key := func(uuid string, d middleware.Delivery) string {
		t.Helper()
		msg := message.NewMessage(uuid, nil)
		(&middleware.Attached{Delivery: d}).Attach(msg)
		key, err := middleware.DeduplicationKey(msg)
		if err != nil || key == "" {
			t.Errorf("got %q, %v", key, err)
		}
		return key
	}
	for name, test := range map[string]struct {
		uuid string
		d    middleware.Delivery
		same bool // as that of another message with the same ids
	}{
		"first delivery":              {"uuid", middleware.Delivery{Queue: "orders"}, true},
		"with a message id":           {"uuid", middleware.Delivery{Queue: "orders", MessageID: "id"}, true},
		"with a message id alone":     {"", middleware.Delivery{Queue: "orders", MessageID: "id"}, true},
		"with no id":                  {"", middleware.Delivery{Queue: "orders"}, false},
		"redelivered":                 {"uuid", middleware.Delivery{Redelivered: true}, false},
		"retried":                     {"uuid", middleware.Delivery{State: state{Failures: 1}}, false},
		"set aside":                   {"uuid", middleware.Delivery{State: state{FirstSeen: time.Now()}}, false},
		"moved back when it was dead": {"uuid", middleware.Delivery{State: state{History: make([]header.AttemptError, 1)}}, false},
	} {
		one, another := key(test.uuid, test.d), key(test.uuid, test.d)
		if (one == another) != test.same {
			t.Errorf("%s: keys %q and %q, want the same %v", name, one, another, test.same)
		}
	}
	byID := middleware.Delivery{Queue: "orders", MessageID: "id"}
	if key("one", byID) != key("another", byID) {
		t.Error("the message id does not come before the UUID")
	}
	if key("uuid", middleware.Delivery{Queue: "orders"}) == key("uuid", middleware.Delivery{Queue: "mails"}) {
		t.Error("a message of another queue has the same key")
	}
	if got, err := middleware.DeduplicationKey(message.NewMessage("uuid", nil)); err != nil || got != key("uuid", middleware.Delivery{}) {
		t.Errorf("without a delivery: %q, %v", got, err)
	}
}
