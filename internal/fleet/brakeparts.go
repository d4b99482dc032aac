// Package fleet lets the processes that share a brake stop and start together, through the broker
// alone. It has the names on the broker and the operator's side of the protocol. A brake has two
// parts:
//
//   - a fanout exchange, by which the processes tell each other the news;
//   - a quorum queue with one active consumer. It holds a token if and only if the brake is
//     stopped. The process that has the token probes. The broker gives the token to another process
//     when that process dies.
//
// No message of a user is ever in these parts. docs/wire.md has the fields of each message.
package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/middleware/header"
)

// Prefix begins the name of the exchange and of the queue of each brake. The name of the brake
// follows.
const Prefix = "millpond.brake."

// The kinds of news, in the property type. The body of each is a header.BrakeState in JSON.
const (
	// Hello asks for the state, and has the state that the sender knows. The process that probes
	// answers with Stopped to the queue in reply_to. Some of the others answer with Told, or with
	// Started if the sender has missed a start.
	Hello = "hello"
	// Told says that the brake is stopped, and how long ago the sender has heard of a token. Its
	// receiver may not take it for the news of a process that probes.
	Told = "told"
	// Stopped says that the brake is stopped. From the exchange it stops no process, because any
	// client may publish there: a process asks the queue in reply_to, and believes the answer to its
	// own queue, whose name is random.
	Stopped = "stopped"
	// Rate has the rate of one process.
	Rate = "rate"
	// Started says that the brake is open.
	Started = "started"
	// Start asks the process that probes to open the brake. By names the operator.
	Start = "start"
	// Bye says that a process leaves.
	Bye = "bye"
	// Refused tells an operator that the sender does not believe the operator's user.
	Refused = "refused"
)

// LongestText is the most bytes of a name and of a cause in a state.
const LongestText = 512

const (
	// longestBody is the most bytes of news and of a token: three texts, escaped, and a name.
	longestBody = 16 << 10
	// mostRate and mostMembers bound numbers in news. mostMembers is also how many rates are kept.
	mostRate    = 1e9
	mostMembers = 10_000
	// aheadLimit is how far the clock of a sender may be ahead.
	aheadLimit = time.Minute
)

// LongestStop is how long an operator may stop a brake. A stop that claims to be longer, of another
// client, ends then.
const LongestStop = 24 * time.Hour

// contentType is of the token and of all news.
const contentType = "application/json"

// largeLimit keeps the broker from deleting a token that many processes had: since RabbitMQ 4.0 a
// quorum queue has a limit of 20 deliveries (F30).
const largeLimit = int64(2147483647)

// maxName is the most bytes of a name. AMQP allows 255 for a queue, and each process has a queue
// whose name begins with the name of the token's queue.
const maxName = 200

// ErrName is the error of a name that no brake can have.
var ErrName = errors.New("no brake can have this name")

// CheckName returns an error unless name is 1 to 200 bytes of printable UTF-8.
func CheckName(name string) error {
	problem := ""
	switch {
	case name == "":
		problem = "it is empty"
	case len(name) > maxName:
		problem = fmt.Sprintf("it has %d bytes, %d are allowed", len(name), maxName)
	case !utf8.ValidString(name):
		problem = "it is not UTF-8"
	}
	for _, r := range name {
		if problem == "" && !unicode.IsPrint(r) {
			problem = fmt.Sprintf("%U is not printable", r)
		}
	}
	if problem == "" {
		return nil
	}
	return fmt.Errorf("%w: %q: %s", ErrName, name[:min(len(name), maxName)], problem)
}

// Arguments are the arguments of the queue that keeps the token.
func Arguments() amqp.Table {
	return amqp.Table{
		"x-queue-type": "quorum", "x-single-active-consumer": true, "x-delivery-limit": largeLimit,
	}
}

// Declare declares the exchange and the queue of a brake. An error of the broker closes ch.
func Declare(ch *amqp.Channel, name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	const kind = amqp.ExchangeFanout
	if err := ch.ExchangeDeclare(Prefix+name, kind, true, false, false, false, nil); err != nil {
		return fmt.Errorf("declare exchange %q of brake %q: %w", Prefix+name, name, err)
	}
	_, err := ch.QueueDeclare(Prefix+name, true, false, false, false, Arguments())
	if err != nil {
		return fmt.Errorf("declare queue %q of brake %q: %w", Prefix+name, name, err)
	}
	return nil
}

// News makes news of a kind about a brake. sender is the instance that tells them.
func News(kind, sender string, state header.BrakeState) (amqp.Publishing, error) {
	body, err := json.Marshal(state)
	return amqp.Publishing{ContentType: contentType, Type: kind, AppId: sender, Body: body}, err
}

// Token makes the message that keeps a brake stopped. id is random.
func Token(id, sender string, state header.BrakeState) (amqp.Publishing, error) {
	state.Stopped = true
	msg, err := News(Stopped, sender, state)
	msg.DeliveryMode, msg.MessageId = amqp.Persistent, id
	return msg, err
}

// Read reads the state from a token or from news about the brake of this name. Any client can
// publish there, so that a body may be anything: all values are bounded, and without a state that
// can be read ok is false.
func Read(name string, d amqp.Delivery) (state header.BrakeState, ok bool) {
	if len(d.Body) > longestBody || json.Unmarshal(d.Body, &state) != nil {
		return header.BrakeState{}, false
	}
	state.Name, state.Unknown = name, false
	for _, text := range []*string{&state.By, &state.Cause, &state.Prober} {
		*text = strings.ToValidUTF8((*text)[:min(len(*text), LongestText)], "")
	}
	now := time.Now()
	state.Since = notAfter(state.Since, now.Add(aheadLimit))
	state.Until = notAfter(state.Until, now.Add(LongestStop))
	state.Rate = min(max(0, state.Rate), mostRate)
	state.Members = min(max(0, state.Members), mostMembers)
	return state, true
}

func notAfter(t, limit time.Time) time.Time {
	if t.After(limit) {
		return limit
	}
	return t
}

// Merge returns the state that counts where a brake has two tokens: a stop by hand before any other
// stop, and the newer one of two stops of a kind.
func Merge(a, b header.BrakeState) header.BrakeState {
	if a.Manual != b.Manual {
		if a.Manual {
			return a
		}
		return b
	}
	if b.Since.After(a.Since) {
		return b
	}
	return a
}
