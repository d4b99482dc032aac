package link

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// CheckURL reports what is wrong with an AMQP URL without quoting any of it.
func CheckURL(rawURL string) error {
	if rawURL == "" {
		return errors.New("AMQP URL is empty: set Connection.AmqpURI, for example amqp://user:password@host:5672/vhost")
	}
	if _, err := parse(rawURL); err != nil {
		return fmt.Errorf("AMQP URL is invalid: %w", err)
	}
	return nil
}

// Address returns host, port and vhost of an AMQP URL, without credentials.
func Address(rawURL string) string {
	uri, err := parse(rawURL)
	if err != nil {
		return "(invalid url)"
	}
	return address(uri)
}

func address(uri amqp.URI) string {
	return fmt.Sprintf("%s:%d vhost %q", uri.Host, uri.Port, uri.Vhost)
}

var (
	errScheme     = errors.New("it must begin with amqp:// or amqps://")
	errWhitespace = errors.New("it contains whitespace")
	errReserved   = errors.New("it cannot be parsed; reserved characters in user and password must be percent-encoded")
	errNumber     = errors.New("its port, heartbeat, connection_timeout or channel_max is not a number in range")
)

// parse is amqp.ParseURI with errors that quote nothing. It also refuses what
// amqp091-go would read in another way than was meant: where a reserved
// character stands in a password, pieces of it become host, port and vhost, and
// would be shown as such.
func parse(rawURL string) (amqp.URI, error) {
	if strings.ContainsAny(rawURL, " \t\r\n") {
		return amqp.URI{}, errWhitespace
	}
	scheme, rest, _ := strings.Cut(rawURL, "://")
	if scheme = strings.ToLower(scheme); scheme != "amqp" && scheme != "amqps" {
		return amqp.URI{}, errScheme
	}
	if end := strings.IndexAny(rest, "/?#"); end >= 0 && strings.Contains(rest[end:], "@") {
		return amqp.URI{}, errReserved
	}
	uri, err := amqp.ParseURI(rawURL)
	var unparsable *url.Error
	switch {
	case errors.As(err, &unparsable):
		return amqp.URI{}, errReserved
	case err != nil, uri.Port < 1, uri.Port > 65535:
		return amqp.URI{}, errNumber
	}
	return uri, nil
}
