package backoff_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/millpond-go/millpond/backoff"
)

// valueError is returned as a value, unlike databaseError.
type valueError struct{ code int }

func (e valueError) Error() string { return fmt.Sprintf("code %d", e.code) }

func TestIs(t *testing.T) {
	t.Parallel()
	match := backoff.Is(io.EOF)
	assert.True(t, match(io.EOF))
	assert.True(t, match(fmt.Errorf("read: %w", io.EOF)))
	assert.True(t, match(errors.Join(errBroken, io.EOF)))
	assert.False(t, match(io.ErrUnexpectedEOF))
	assert.False(t, match(errors.New("EOF")))
	assert.False(t, match(nil))
	assert.Nil(t, backoff.Is(nil), "would match nothing, or no error")
}

func TestAs(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		match func(error) bool
		err   error
		want  bool
	}{
		{"pointer", backoff.As[*databaseError](), &databaseError{"orders"}, true},
		{"wrapped", backoff.As[*databaseError](), fmt.Errorf("save: %w", &databaseError{"orders"}), true},
		{"joined", backoff.As[*databaseError](), errors.Join(io.EOF, &databaseError{"orders"}), true},
		{"value", backoff.As[valueError](), valueError{7}, true},
		{"pointer, asked for a value", backoff.As[valueError](), &valueError{7}, false},
		{"value, asked for a pointer", backoff.As[*valueError](), valueError{7}, false},
		{"interface", backoff.As[net.Error](), &net.DNSError{}, true},
		{"interface, not implemented", backoff.As[net.Error](), io.EOF, false},
		{"deadline is a net.Error", backoff.As[net.Error](), context.DeadlineExceeded, true},
		{"any error", backoff.As[error](), io.EOF, true},
		{"other type", backoff.As[*databaseError](), valueError{7}, false},
		{"nil", backoff.As[error](), nil, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, test.want, test.match(test.err))
		})
	}
}

func ExampleIs() {
	match := backoff.Is(io.EOF)
	fmt.Println(match(fmt.Errorf("read: %w", io.EOF)), match(io.ErrUnexpectedEOF))
	// Output: true false
}

func ExampleAs() {
	match := backoff.As[net.Error]()
	fmt.Println(match(fmt.Errorf("look up: %w", &net.DNSError{Name: "bank.example"})), match(io.EOF))
	// Output: true false
}
