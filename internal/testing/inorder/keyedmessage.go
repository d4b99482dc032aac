package main

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// id names a message: number n of a key, both counted from 1.
type id struct{ key, n int }

func (m id) String() string { return fmt.Sprintf("key %d number %d", m.key, m.n) }

// The headers repeat the body, so that the option can take the key from either.
const (
	keyHeader    = "order-key"
	numberHeader = "order-number"
)

// publishing returns the message as its producer publishes it. published is the time of its first
// publish.
func (m id) publishing(published time.Time) amqp.Publishing {
	return amqp.Publishing{
		MessageId: fmt.Sprintf("%d/%d", m.key, m.n),
		Headers:   amqp.Table{keyHeader: strconv.Itoa(m.key), numberHeader: strconv.Itoa(m.n)},
		Body:      fmt.Appendf(nil, "%d/%d/%d", m.key, m.n, published.UnixNano()),
	}
}

// parseMessageID returns the message of a message ID.
func parseMessageID(text string) (m id, err error) {
	if _, err = fmt.Sscanf(text, "%d/%d", &m.key, &m.n); err != nil {
		err = fmt.Errorf("message ID %q: want key/number: %w", text, err)
	}
	return m, err
}

// mendedMark is the end of a body that an editor has mended.
const mendedMark = "/mended"

func isMended(body []byte) bool { return strings.HasSuffix(string(body), mendedMark) }

// parseBody returns the message of a body, and the time of its first publish.
func parseBody(body []byte) (m id, published time.Time, err error) {
	parts := strings.Split(strings.TrimSuffix(string(body), mendedMark), "/")
	var numbers [3]int64
	if len(parts) != len(numbers) {
		return m, published, fmt.Errorf("body %q: want key/number/time", body)
	}
	for i, part := range parts {
		if numbers[i], err = strconv.ParseInt(part, 10, 64); err != nil {
			return m, published, fmt.Errorf("body %q: %w", body, err)
		}
	}
	return id{int(numbers[0]), int(numbers[1])}, time.Unix(0, numbers[2]), nil
}

// fates decides by a seed which messages fail. Every process gets the same answers.
type fates struct {
	Seed    uint64
	Percent int // of the messages fail one to five times
	Dead    int // of a thousand messages fail until they are dead letters
	// Healthy keys, those with the lowest numbers, never fail.
	Healthy int
	// Slow of a thousand handlings take so long that a fault strikes in the middle of some.
	Slow int
}

// mostFailures is the largest number of failures before a success.
const mostFailures = 5

// failures returns how many attempts of a message fail before one succeeds. More than mostFailures
// means that none does.
func (f fates) failures(m id) int {
	if m.key <= f.Healthy {
		return 0
	}
	r := f.draw(m)
	switch roll := r.IntN(1000); {
	case roll < f.Dead:
		return mostFailures + 1
	case roll < f.Dead+10*f.Percent:
		return 1 + r.IntN(mostFailures)
	}
	return 0
}

// failuresMended returns how many attempts fail after a letter was mended. Most fail, so that the
// messages behind the letter have time to overtake it.
func (f fates) failuresMended(m id) int { return f.draw(id{-m.key, m.n}).IntN(4) }

// decision returns how the operator decides about the letter of a message.
func (f fates) decision(m id) outcome {
	if f.draw(id{-m.key, -m.n}).IntN(3) == 0 {
		return released
	}
	return replayed
}

// failsTwice reports whether a letter is first replayed without an edit.
func (f fates) failsTwice(m id) bool { return f.draw(id{m.key, -m.n}).IntN(4) == 0 }

// work returns how long a handling of a message takes: 1 to 8 ms, or 200 to 700 ms if it is slow.
func (f fates) work(m id, attempt int) time.Duration {
	r := f.draw(id{m.key, m.n + attempt<<32})
	if r.IntN(1000) < f.Slow {
		return time.Duration(200+r.IntN(500)) * time.Millisecond
	}
	return time.Millisecond + time.Duration(r.IntN(7000))*time.Microsecond
}

func (f fates) draw(m id) *rand.Rand {
	return rand.New(rand.NewPCG(f.Seed, uint64(m.key)<<40^uint64(m.n)))
}
