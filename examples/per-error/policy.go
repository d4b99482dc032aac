package main

import (
	"errors"
	"net"
	"time"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
)

var (
	errInvalid = errors.New("invalid order")
	errBusy    = errors.New("the warehouse is busy")
	errLimited = errors.New("rate limited")
	errClosed  = errors.New("the shop is closed")
)

// policy: soon and often on the network, seldom where somebody is busy, and a
// growing delay for all else. What is invalid is classified, so no policy is asked.
var policy = backoff.ByError{
	Cases: []backoff.Case{
		{Match: backoff.As[net.Error](), Policy: backoff.Constant{Interval: 100 * time.Millisecond, Retries: 5}},
		{Match: backoff.Is(errBusy), Policy: backoff.Constant{Interval: 2 * time.Second, Retries: 1}},
	},
	Default: backoff.List{200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond},
}

// orders are what the demo publishes: for each the errors of its attempts. One
// more attempt is without an error.
var orders = map[string][]error{
	"network": {unreachable(), unreachable(), unreachable()},
	"busy":    {errBusy},
	"hopeless": {
		errClosed, errClosed, errClosed, errClosed,
	},
	"invalid": {errInvalid},
	// The other side has said when, and it is longer than the policy's delay. What is
	// asked for takes the shortest wait queue that is no shorter.
	"limited": {middleware.RetryAfter(errLimited, 2*time.Second)},
	// No failure: the count stays, whatever the policy says.
	"later": {middleware.Snooze(errClosed, 400*time.Millisecond), middleware.Snooze(errClosed, 400*time.Millisecond)},
}

// unreachable is the error of a port that nobody listens on.
func unreachable() error {
	return &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
}
