package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// broker is a node for the bench, with the preparations of the contests.
type broker struct {
	node   *testbroker.Node
	conn   *amqp.Connection
	queues atomic.Int64
}

func startBroker(ctx context.Context) (*broker, error) {
	node, err := testbroker.Start(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := amqp.Dial(node.URL())
	if err != nil {
		return nil, errors.Join(err, node.Close())
	}
	return &broker{node: node, conn: conn}, nil
}

func (b *broker) close() error {
	_ = b.conn.Close()
	return b.node.Close()
}

// name returns a new name of a queue.
func (b *broker) name(of string) string { return fmt.Sprintf("%s-%d", of, b.queues.Add(1)) }

// do runs f on a new channel in confirm mode.
func (b *broker) do(f func(*amqp.Channel) error) error {
	ch, err := b.conn.Channel()
	if err != nil {
		return err
	}
	defer func() { _ = ch.Close() }()
	if err := ch.Confirm(false); err != nil {
		return err
	}
	return f(ch)
}

var quorum = amqp.Table{"x-queue-type": "quorum"}

func (b *broker) declare(queue string, args amqp.Table) error {
	return b.do(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(queue, true, false, false, false, args)
		return err
	})
}

// declareWait declares a quorum wait queue in front of queue that loses no message.
func (b *broker) declareWait(wait, queue string, delay time.Duration) error {
	return b.declare(wait, amqp.Table{
		"x-queue-type": "quorum", "x-message-ttl": delay.Milliseconds(), "x-dead-letter-exchange": "",
		"x-dead-letter-routing-key": queue,
		"x-dead-letter-strategy":    "at-least-once", "x-overflow": "reject-publish",
	})
}

func (b *broker) purge(queues ...string) error {
	return b.do(func(ch *amqp.Channel) (err error) {
		for _, queue := range queues {
			_, failed := ch.QueuePurge(queue, false)
			err = errors.Join(err, failed)
		}
		return err
	})
}

func (b *broker) delete(queues ...string) error {
	return b.do(func(ch *amqp.Channel) (err error) {
		for _, queue := range queues {
			_, failed := ch.QueueDelete(queue, false, false, false)
			err = errors.Join(err, failed)
		}
		return err
	})
}

// load is the size of messages: bytes of payload and a number of headers.
type load struct{ bytes, headers int }

// usual is the load of contests that do not compare loads.
var usual = load{bytes: 1024, headers: 2}

// numbered returns message i of a load. Its body begins with i.
func (l load) numbered(i int) amqp.Publishing {
	body := make([]byte, max(l.bytes, 8))
	binary.BigEndian.PutUint64(body, uint64(i))
	headers := make(amqp.Table, l.headers)
	for k := range l.headers {
		headers["header-"+strconv.Itoa(k)] = "a value of twenty-six bytes"
	}
	return amqp.Publishing{
		Headers: headers, MessageId: strconv.Itoa(i), DeliveryMode: amqp.Persistent, Body: body,
	}
}

func number(body []byte) int { return int(binary.BigEndian.Uint64(body)) }

// window bounds the messages that are published and not yet confirmed.
const window = 1000

// fill puts n messages, numbered from first, into a queue and returns when all are confirmed. No
// client is faster.
func (b *broker) fill(queue string, first, n int, l load) error {
	return b.do(func(ch *amqp.Channel) error {
		var confirms []*amqp.DeferredConfirmation
		for i := range n {
			msg := l.numbered(first + i)
			confirm, err := ch.PublishWithDeferredConfirm("", queue, true, false, msg)
			if err != nil {
				return err
			}
			confirms = append(confirms, confirm)
			if len(confirms) == window || i == n-1 {
				for _, c := range confirms {
					if !c.Wait() {
						return fmt.Errorf("queue %q: not confirmed", queue)
					}
				}
				confirms = confirms[:0]
			}
		}
		return nil
	})
}

// clockTick is USER_HZ, 100 on every Linux that Go knows.
const clockTick = time.Second / 100

// processorTime returns the processor time that processes, and their children that have ended, have
// used so far.
func processorTime(pids ...int) time.Duration {
	var ticks int64
	for _, pid := range pids {
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		// The name of the program, in parentheses, may hold anything.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) < 15 { // it has ended
			continue
		}
		for _, field := range fields[11:15] { // utime, stime, cutime, cstime
			n, _ := strconv.ParseInt(field, 10, 64)
			ticks += n
		}
	}
	return time.Duration(ticks) * clockTick
}

// memory returns a field of a file of processes under /proc, in MiB.
func memory(file, field string, pids ...int) (mib float64) {
	for _, pid := range pids {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
		_, after, _ := strings.Cut(string(text), field)
		var kib float64
		_, _ = fmt.Sscan(after, &kib)
		mib += kib / 1024
	}
	return mib
}

// children returns processes with all that descend from them.
func children(pids ...int) []int {
	for i := 0; i < len(pids); i++ {
		list, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pids[i], pids[i]))
		for field := range strings.FieldsSeq(string(list)) {
			pid, _ := strconv.Atoi(field)
			pids = append(pids, pid)
		}
	}
	return pids
}

// ownProcessorTime returns the processor time that this process has used so far.
func ownProcessorTime() time.Duration {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
