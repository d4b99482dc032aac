package topology

import (
	"errors"
	"fmt"
	"net"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/consumer"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/publisher"
)

var (
	// ErrClosed is returned by every call on a closed Client or Subscriber.
	ErrClosed = errors.New("closed")
	// ErrTooLarge is returned if the headers of a message leave no room in a frame for the headers
	// of a retry.
	ErrTooLarge = consumer.ErrTooLarge
	// ErrUnroutable is returned if no queue took a message that was published.
	ErrUnroutable = publisher.ErrUnroutable
	// ErrOutcomeUnknown is returned if a message was sent, but it is unknown whether the broker has
	// stored it.
	ErrOutcomeUnknown = publisher.ErrUnknown
)

// ConflictError is returned if a queue or an exchange exists with other arguments. RabbitMQ cannot
// change them. If the queue or the exchange is the user's own, the configuration must name the
// arguments that it has. Otherwise delete the queue once it is empty, or the exchange while no
// service uses it, or choose another name in the strategy.
type ConflictError struct {
	// Kind is "queue" or "exchange", Name its name.
	Kind, Name string
	// Argument is the first argument that differs, Wanted is the declared value, and Found is the
	// value on the broker. Found is empty if a long name leaves no room for it, because the broker
	// cuts its text at 255 bytes.
	Argument, Wanted, Found string
	// Err is the error of the broker.
	Err error

	configured bool // the user's Config declares it
}

func (e *ConflictError) Error() string {
	difference := fmt.Sprintf("%s is %s, wanted %s", e.Argument, e.Found, e.Wanted)
	if e.Found == "" {
		difference = fmt.Sprintf("%s is not the %s that was wanted", e.Argument, e.Wanted)
	}
	return fmt.Sprintf("%s %q exists with other arguments: %s; %s",
		e.Kind, e.Name, difference, e.wayOut())
}

// wayOut returns the way out of the conflict.
func (e *ConflictError) wayOut() string {
	switch {
	case !e.configured && e.Kind == "exchange":
		return "stop all services that use it, delete it, and start them again, because an exchange " +
			"holds no messages and each Subscribe declares it with its own bindings; or choose another " +
			"name in the strategy"
	case !e.configured:
		return "delete it once it is empty, or choose another name in the strategy"
	}
	field := e.field()
	set := fmt.Sprintf("set %s of the configuration to the value of the %s", field, e.Kind)
	if e.Found == "none" {
		set = fmt.Sprintf("leave %s out of the configuration", field)
	}
	if e.Kind == "exchange" {
		return set
	}
	return set + ", or delete the queue once it is empty"
}

// field is the field of watermill-amqp's Config that the argument comes from.
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

// Unwrap returns the error of the broker.
func (e *ConflictError) Unwrap() error { return e.Err }

// configuredError is declareError for a queue or an exchange that the user's Config declares.
func configuredError(kind, name string, args amqp.Table, err error) error {
	err = declareError(kind, name, args, err)
	var c *ConflictError
	if errors.As(err, &c) {
		c.configured = true
	}
	return err
}

// declareError names the queue or exchange that could not be declared, and the way out if it is
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
		return fmt.Errorf("declare %s %q: the user may not: grant it the configure permission for "+
			"that name, and the other permissions that Plan.Permissions lists: %w", kind, name, err)
	}
	return fmt.Errorf("declare %s %q: %w", kind, name, err)
}

// withWayOut adds the way out to an error of the broker.
func withWayOut(err error) error {
	var network *net.OpError
	switch {
	case errors.Is(err, link.ErrOtherCluster):
		return fmt.Errorf("use brokers of one cluster for a Client and its Subscribers and "+
			"Publishers, because a retry on another cluster never comes back; WithoutClusterCheck "+
			"switches this check off: %w", err)
	case errors.Is(err, amqp.ErrCredentials),
		isCode(err, amqp.AccessRefused) && strings.Contains(err.Error(), "Login was refused"):
		return fmt.Errorf("the broker does not know this user with this password: correct one of them; "+
			"the user guest may connect from the broker's own machine only: %w", err)
	case isCode(err, amqp.AccessRefused):
		return fmt.Errorf("the user may not: grant it the permissions that Plan.Permissions lists: %w",
			err)
	case errors.As(err, &network) && network.Op == "dial":
		return fmt.Errorf("the broker cannot be reached: start it or correct the address, then try "+
			"again: %w", err)
	}
	return err
}

func isCode(err error, code int) bool { return audit.IsCode(err, code) }
