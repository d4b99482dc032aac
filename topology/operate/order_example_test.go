package operate_test

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// Replays the letters of a key in their order, and lets the key go on.
func ExampleKeyOf() {
	letter := operate.Letter{Delivery: amqp.Delivery{
		Headers: amqp.Table{keys.DeadKey: "order 17", keys.DeadLine: "block 1 3-17"},
	}}
	fmt.Println(operate.KeyOf(letter))
	replay := func(ctx context.Context, operator *operate.Operator, plan topology.Plan) error {
		_, err := operator.ReplayKey(ctx, plan, operate.KeyOf(letter), operate.ReplayOptions{})
		return err
	}
	_ = replay
	// Output: order 17
}

// Finds the key that a mark blocks, however many keys wait.
func ExampleOperator_FindKey() {
	waiting := func(
		ctx context.Context, operator *operate.Operator, plan topology.Plan, mark string,
	) (int, error) {
		found, err := operator.FindKey(ctx, plan, "", mark)
		return found.Waiting, err
	}
	_ = waiting
	// Output:
}

// Another person was faster: the key goes on.
func ExampleOperator_ReleaseKey() {
	release := func(ctx context.Context, operator *operate.Operator, plan topology.Plan) error {
		var state operate.OrderState
		state, err := operator.Order(ctx, plan)
		if err != nil {
			return err
		}
		for _, found := range state.BlockedKeys() {
			var key operate.OrderKey = found
			err := operator.ReleaseKey(ctx, plan, key.Key, key.Mark)
			if err != nil && !errors.Is(err, operate.ErrNotBlocked) {
				return err
			}
		}
		return nil
	}
	_ = release
	fmt.Println(operate.ErrNotBlocked)
	// Output: the key is not blocked by this dead letter
}
