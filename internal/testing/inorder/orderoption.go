package main

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/inorder"
)

// strategy returns the strategy of an instance: with it, the messages of a key stay in order. All
// of the program that depends on how order is asked for is in this file.
func strategy(ordered, block bool) topology.Strategy {
	if ordered {
		return inorder.Strategy{KeyBy: keyBy, Block: block}
	}
	return topology.PerQueue{}
}

// keyBy returns the key of a message, as a user would.
func keyBy(msg *message.Message) string { return msg.Metadata.Get(keyHeader) }

// epochOf returns the fencing token of a handling, or 0 without one.
func epochOf(ctx context.Context) uint64 { return middleware.StateOf(ctx).Epoch }

// lineOf returns the queue in which the messages of waiting keys stand.
func lineOf(queue string) string { return queue + ".line" }
