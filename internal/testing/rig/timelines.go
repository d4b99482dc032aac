package rig

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
)

// Fail is a Config.Handle that fails every message.
func Fail(*message.Message) error { return ErrFailed }

// Succeed is a Config.Handle that handles every message.
func Succeed(*message.Message) error { return nil }

// FailFirst is a Config.Handle that fails the first attempt of every message.
func FailFirst(msg *message.Message) error {
	if middleware.Attempt(msg.Context()) == 1 {
		return ErrFailed
	}
	return nil
}

// Fail is a Config.Handle that records the call and fails.
func (l *Timeline) Fail(*message.Message) error {
	l.Add()
	return ErrFailed
}

// FailUntil returns a Config.Handle that records the call and fails before the nth call.
func (l *Timeline) FailUntil(n int) func(*message.Message) error {
	return func(*message.Message) error {
		if l.Add() < n {
			return ErrFailed
		}
		return nil
	}
}

// UnlistedDelays returns a policy with these delays that cannot list them, so that a plan has
// the wait steps of its strategy.
func UnlistedDelays(delays ...time.Duration) backoff.Policy {
	return backoff.Limit{Retries: len(delays), Policy: backoff.PolicyFunc(
		func(f backoff.Failure) (time.Duration, bool) { return delays[f.Count-1], true })}
}
