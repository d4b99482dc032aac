package middleware

import (
	"fmt"

	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/millpond-go/millpond/internal/excerpt"
)

// maxLogBytes is the most of an error's text that is logged.
const maxLogBytes = 512

// errorText returns the text of err without any stack: of a panic, also one
// that Watermill's Recoverer caught, the value only.
func errorText(err error) (text string) {
	if value := contain(func() { text = rawText(err) }); value != nil {
		return fmt.Sprintf("%T whose methods panic", err)
	}
	return text
}

func rawText(err error) string {
	text := ""
	walk(err, func(err error) bool {
		// Its Error method prints the stack, and so does all that wraps it.
		p, ok := as[wmiddleware.RecoveredPanicError](err)
		if ok {
			text = panicText(p.V)
		}
		return !ok
	})
	if text != "" {
		return text
	}
	return err.Error()
}

// loggedError is err with the text it has in the log.
type loggedError struct {
	text string
	err  error
}

func (e *loggedError) Error() string { return e.text }
func (e *loggedError) Unwrap() error { return e.err }

// forLog returns err with the given text, cut.
func forLog(err error, text string) error {
	return &loggedError{text: excerpt.Of(text, maxLogBytes), err: err}
}
