package topology

import (
	"errors"
	"fmt"
	"net"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/publisher"
)

var (
	// ErrClosed is returned by every call on a closed Client or Subscriber.
	ErrClosed = errors.New("closed")
	// ErrTooLarge: the headers of a message leave no room for ours in a frame.
	ErrTooLarge = errors.New("headers do not fit in one frame")
	// ErrUnroutable: no queue took a message that was published.
	ErrUnroutable = errors.New("no queue took the message")
	// ErrOutcomeUnknown: a message was sent, but whether the broker has stored it
	// is unknown.
	ErrOutcomeUnknown = publisher.ErrUnknown

	errCannotStore = errors.New("failed messages cannot be stored")
	errOrder       = errors.New("middlewares are in the wrong order: see docs/middlewares.md")
)

// ConflictError is returned when a queue or an exchange exists with other
// arguments. RabbitMQ cannot change them. Where the queue or the exchange is the user's
// own, the configuration must name the arguments that it has. Otherwise delete the queue
// once it is empty, or the exchange while no service uses it, or choose another name in
// the strategy.
type ConflictError struct {
	// Kind is "queue" or "exchange", Name its name.
	Kind, Name string
	// Argument differs first, Wanted is the value that was declared, Found that of the
	// broker; empty where a long name leaves no room for it, because the broker cuts
	// what it says at 255 bytes.
	Argument, Wanted, Found string
	// Err is what the broker said.
	Err error

	configured bool // declared as the user's Config says
}

func (e *ConflictError) Error() string {
	difference := fmt.Sprintf("%s is %s, wanted %s", e.Argument, e.Found, e.Wanted)
	if e.Found == "" {
		difference = fmt.Sprintf("%s differs from the %s wanted", e.Argument, e.Wanted)
	}
	return fmt.Sprintf("%s %q exists with other arguments: %s; %s",
		e.Kind, e.Name, difference, e.wayOut())
}

// wayOut says what to do about the conflict.
func (e *ConflictError) wayOut() string {
	switch {
	case !e.configured && e.Kind == "exchange":
		return "stop all services that use it, delete it, and start them again, because an exchange holds no messages and each " +
			"Subscribe declares it with its own bindings; or choose another name in the strategy"
	case !e.configured:
		return "delete it once it is empty, or choose another name in the strategy"
	}
	field := e.field()
	set := fmt.Sprintf("set %s of the configuration to what the %s has", field, e.Kind)
	if e.Found == "none" {
		set = fmt.Sprintf("leave %s out of the configuration", field)
	}
	if e.Kind == "exchange" {
		return set
	}
	return set + ", or delete the queue once it is empty"
}

// field is the field of watermill-amqp's Config that the argument was declared from.
func (e *ConflictError) field() string {
	part := "Queue"
	if e.Kind == "exchange" {
		part = "Exchange"
	}
	switch e.Argument {
	case "type":
		return part + ".Type"
	case "durable":
		return part + ".Durable"
	case "auto_delete":
		if e.Kind == "exchange" {
			return "Exchange.AutoDeleted"
		}
		return "Queue.AutoDelete"
	case "internal":
		return part + ".Internal"
	}
	return fmt.Sprintf("%s.Arguments[%q]", part, e.Argument)
}

// Unwrap returns what the broker said.
func (e *ConflictError) Unwrap() error { return e.Err }

// configuredError is declareError for what the user's Config names.
func configuredError(kind, name string, args amqp.Table, err error) error {
	err = declareError(kind, name, args, err)
	var c *ConflictError
	if errors.As(err, &c) {
		c.configured = true
	}
	return err
}

// declareError names what could not be declared, and the way out where it is
// known.
func declareError(kind, name string, args amqp.Table, err error) error {
	var amqpErr *amqp.Error
	if !errors.As(err, &amqpErr) {
		return fmt.Errorf("declare %s %q: %w", kind, name, err)
	}
	switch amqpErr.Code {
	case amqp.PreconditionFailed:
		if c := audit.ReadConflict(kind, name, args, err); c != nil {
			return &ConflictError{
				Kind: c.Kind, Name: c.Name, Argument: c.Argument, Wanted: c.Wanted, Found: c.Found, Err: err,
			}
		}
	case amqp.AccessRefused:
		return fmt.Errorf("declare %s %q: the user may not: grant it the configure permission for that name, and what else Plan.Permissions lists: %w", kind, name, err)
	}
	return fmt.Errorf("declare %s %q: %w", kind, name, err)
}

// withWayOut adds to an error of the broker what can be done about it.
func withWayOut(err error) error {
	var network *net.OpError
	switch {
	case errors.Is(err, link.ErrOtherCluster):
		return fmt.Errorf("use brokers of one cluster for everything of a Client, because a retry on another cluster never comes back, or WithoutClusterCheck if you know better: %w", err)
	case isCode(err, amqp.AccessRefused):
		return fmt.Errorf("the user may not: grant it what Plan.Permissions lists: %w", err)
	case errors.As(err, &network) && network.Op == "dial":
		return fmt.Errorf("the broker cannot be reached: start it or correct the address, then try again, for nothing waits for it here: %w", err)
	}
	return err
}

func isCode(err error, code int) bool { return audit.IsCode(err, code) }

// tooLargeError is the ErrTooLarge of one message: of bytes, or of headers.
type tooLargeError struct {
	got, limit int
	unit       string
}

func (e *tooLargeError) Error() string {
	return fmt.Sprintf("%v: %d %s, %d are left for them", ErrTooLarge, e.got, e.unit, e.limit)
}

func (e *tooLargeError) Unwrap() error { return ErrTooLarge }
