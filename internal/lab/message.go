package main

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// id names a message: number N of a key, both counted from 1.
type id struct {
	Key int `json:"y,omitempty"`
	N   int `json:"n,omitempty"`
}

func (m id) String() string { return fmt.Sprintf("%d/%d", m.Key, m.N) }

// keyHeader has the key of a message for its consumers.
const keyHeader = "lab-key"

// mendedMark is the end of a body that an operator has mended.
const mendedMark = "/mended"

// publishing returns the message as its producer publishes it.
func (m id) publishing() amqp.Publishing {
	return amqp.Publishing{
		MessageId: m.String(), Headers: amqp.Table{keyHeader: strconv.Itoa(m.Key)},
		Body: []byte(m.String()),
	}
}

// parseID returns the message of a body or of a message ID.
func parseID(text string) (m id, mended bool, err error) {
	text, mended = strings.CutSuffix(text, mendedMark)
	key, n, _ := strings.Cut(text, "/")
	if m.Key, err = strconv.Atoi(key); err == nil {
		m.N, err = strconv.Atoi(n)
	}
	if err != nil {
		err = fmt.Errorf("%q: want key/number: %w", text, err)
	}
	return m, mended, err
}

// fates decides by a seed which attempts fail, and how. Every process gets the same answers.
type fates struct {
	Seed uint64
	// Fail of a thousand messages fail one to Retries times before they succeed. Dead of a thousand
	// fail until they are dead letters. Permanent of a thousand fail once and for all.
	Fail, Dead, Permanent int
	Retries               int
	Panics                int  // of a hundred failures
	Slow                  int  // of a thousand handlings, so that faults strike in the middle of some
	Priorities            bool // messages have priorities from 0 to 9
}

// failures returns how many attempts of a message fail before one succeeds: more than Retries if
// none succeeds, -1 if it fails permanently at once.
func (f fates) failures(m id) int {
	r := f.draw(m, 0)
	switch roll := r.IntN(1000); {
	case roll < f.Permanent:
		return -1
	case roll < f.Permanent+f.Dead:
		return f.Retries + 1
	case roll < f.Permanent+f.Dead+f.Fail:
		return 1 + r.IntN(f.Retries)
	}
	return 0
}

// failuresMended returns how many attempts fail after a letter was mended. Most fail, so that the
// messages behind the letter have time to overtake it.
func (f fates) failuresMended(m id) int { return f.draw(m, 1).IntN(4) }

// dies reports whether a message ends as a dead letter.
func (f fates) dies(m id) bool { n := f.failures(m); return n < 0 || n > f.Retries }

// panics reports whether the failure of an attempt is a panic.
func (f fates) panics(m id, attempt int) bool { return f.draw(m, 2+attempt).IntN(100) < f.Panics }

// priority returns the priority of a message.
func (f fates) priority(m id) int {
	if !f.Priorities {
		return 0
	}
	return f.draw(m, -1).IntN(10)
}

// decision returns how the operator decides about the letter of a message.
func (f fates) decision(m id) outcome {
	if f.draw(m, -2).IntN(3) == 0 {
		return released
	}
	return replayed
}

// failsTwice reports whether a letter is first replayed without an edit.
func (f fates) failsTwice(m id) bool { return f.draw(m, -3).IntN(4) == 0 }

// work returns how long a handling takes: 1 to 8 ms, or 200 to 1200 ms if it is slow.
func (f fates) work(m id, attempt int) time.Duration {
	r := f.draw(m, 100+attempt)
	if r.IntN(1000) < f.Slow {
		return time.Duration(200+r.IntN(1000)) * time.Millisecond
	}
	return time.Millisecond + time.Duration(r.IntN(7000))*time.Microsecond
}

func (f fates) draw(m id, salt int) *rand.Rand {
	return rand.New(rand.NewPCG(f.Seed^uint64(salt)<<48, uint64(m.Key)<<40^uint64(m.N)))
}
