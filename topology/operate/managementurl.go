package operate

import (
	"fmt"
	"net"
	"net/url"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/link"
)

// ManagementURL returns where the management API of a broker is by default: on the host of the AMQP
// URL and with the same user and password, at https and port 15671 for amqps, at http and port
// 15672 for amqp. Plain http sends the password unencrypted: beyond this machine it is an error,
// unless plain is true. No error quotes the password.
func ManagementURL(amqpURL string, plain bool) (string, error) {
	if err := link.CheckURL(amqpURL); err != nil {
		return "", fmt.Errorf("management API: %w", err)
	}
	from, err := amqp.ParseURI(amqpURL)
	if err != nil {
		return "", fmt.Errorf("management API: the AMQP URL cannot be parsed")
	}
	u := url.URL{
		Scheme: "https", Host: net.JoinHostPort(from.Host, "15671"),
		User: url.UserPassword(from.Username, from.Password),
	}
	if from.Scheme == "amqps" {
		return u.String(), nil
	}
	if !plain && !isLoopback(from.Host) {
		return "", fmt.Errorf("management API: the AMQP URL of host %q is not encrypted, and http "+
			"would send the password in the clear: name an https address, as in "+
			"https://user:password@%s, or ask for plain http", from.Host, u.Host)
	}
	u.Scheme, u.Host = "http", net.JoinHostPort(from.Host, "15672")
	return u.String(), nil
}

func isLoopback(host string) bool {
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}
