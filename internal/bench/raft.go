package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/topology"
)

// raftEntries is Erlang that sums the last log indexes of all quorum queues of a node. The key has
// changed its name.
const raftEntries = `lists:sum([Index ||
	{resource, _, queue, Name} <- [amqqueue:get_name(Q) || Q <- rabbit_amqqueue:list(),
		amqqueue:get_type(Q) == rabbit_quorum_queue],
	{Key, Index} <- hd(rabbit_quorum_queue:status(<<"/">>, Name)),
	Key == <<"Log Index">> orelse Key == <<"Last Log Index">>]).`

func (b *broker) raftEntries(ctx context.Context) (float64, error) {
	out, err := b.node.RunCtl(ctx, "eval", raftEntries)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(out))
	return float64(n), err
}

// raftDelay takes four levels of topology.Levels, as a minute does.
const raftDelay = 15 * time.Second

// scaleRaft counts the log entries of all quorum queues for a message that succeeds, and for one
// that fails once.
func (b *bench) scaleRaft(ctx context.Context) (results []result, err error) {
	for name, strategy := range map[string]topology.Strategy{
		"PerQueue":          topology.PerQueue{},
		"PerQueue, classic": topology.PerQueue{Type: topology.Classic},
		"Shared":            topology.Shared{Prefix: b.broker.name("shared")},
		"Levels":            topology.Levels{Prefix: b.broker.name("levels"), Max: time.Hour},
	} {
		measured := values{}
		for metric, each := range map[string]int{"entries, success": 0, "entries, one failure": 1} {
			f := &failOnce{each: each}
			l, err := b.newLane(ctx, func(ctx context.Context, b *broker, w work) (*service, error) {
				return serveMillpondOn(ctx, b.node.URL(), strategy, quorum, backoff.List{w.delay}, w)
			}, work{inFlight: 8, delay: raftDelay, handle: f.handle})
			if err != nil {
				return results, errors.Join(err, l.end())
			}
			const n = 2000
			f.failed = map[int]time.Time{}
			before, err := b.broker.raftEntries(ctx)
			if err == nil {
				_, err = l.batch(ctx, n, n*(1+each), usual)
			}
			after, counted := b.broker.raftEntries(ctx)
			measured[metric] = (after - before) / n
			if err := errors.Join(err, counted, l.end()); err != nil {
				return results, fmt.Errorf("%s: %w", name, err)
			}
		}
		results = b.add(results, "raft", 0, name, measured)
	}
	return results, nil
}
