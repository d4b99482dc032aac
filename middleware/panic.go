package middleware

import (
	"fmt"
	"runtime/debug"

	"github.com/ThreeDotsLabs/watermill/message"
)

// PanicError is the failure of a handler that panicked. It is classified like
// any error: by default a panic is retried.
type PanicError struct {
	// Value is what the handler panicked with.
	Value any
	// Stack is the stack of the handler's goroutine. It is in no error text, no
	// header and no log line, for it may hold secrets.
	Stack []byte
}

// Error returns "panic: " and the value, never the stack.
func (e *PanicError) Error() string { return panicText(e.Value) }

// Unwrap returns the value if it is an error, so that its marks and its
// identity count. Otherwise it returns nil.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

func panicText(value any) string { return fmt.Sprint("panic: ", value) }

// call calls h and returns a panic as a *PanicError. If h ends its goroutine
// (runtime.Goexit, which is what t.FailNow does), nobody above would ever
// settle the message: it is nacked here.
func call(h message.HandlerFunc, msg *message.Message) (produced []*message.Message, err error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		value := recover()
		if value == nil {
			msg.Nack()
		}
		err = &PanicError{Value: value, Stack: debug.Stack()}
	}()
	produced, err = h(msg)
	returned = true
	return produced, err
}
