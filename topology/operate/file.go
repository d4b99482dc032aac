package operate

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/topology"
)

// Export writes the dead letters that filter chooses to w, up to limit of them if it is not 0, each
// a line of JSON that Import reads (see Encode), and returns their number. They stay in the queue.
func (o *Operator) Export(
	ctx context.Context, plan topology.Plan, filter Filter, limit int, w io.Writer,
) (int, error) {
	n, writeErr, err := export(w, o.Dead(ctx, plan, filter, limit))
	if writeErr != nil {
		err = fmt.Errorf("export dead letters of queue %q: %w", plan.Queue, writeErr)
	}
	return n, err
}

// export writes letters to w, up to the first error of them or of w.
func export(w io.Writer, letters iter.Seq2[Letter, error]) (n int, writeErr, err error) {
	for l, err := range letters {
		if err != nil {
			return n, nil, err
		}
		line, err := Encode(l.Delivery)
		if err == nil {
			_, err = w.Write(append(line, '\n'))
		}
		if err != nil {
			return n, err, nil
		}
		n++
	}
	return n, nil, nil
}

// ImportOptions say where Import puts messages.
type ImportOptions struct {
	// To is the queue that gets them. Default: the dead-letter queue of the plan.
	To string
	// Skip is the number of lines to pass over: the number that an interrupted import has returned.
	// Default: 0.
	Skip int
	// Progress is called with the number of confirmed lines after each. Default: no call.
	Progress func(confirmed int)
}

// Import publishes messages that Export wrote, in their order, each confirmed, and returns the
// number of lines that are done, the skipped lines among them. With that number as Skip, an import
// that failed goes on. An import that is begun again without it doubles the messages that are done.
//
// The messages are as they were, except for the properties that are never published again (see
// Replay).
func (o *Operator) Import(
	ctx context.Context, plan topology.Plan, r io.Reader, options ImportOptions,
) (lines int, err error) {
	queue := options.To
	if queue == "" {
		if queue, err = deadQueue(plan); err != nil {
			return 0, fmt.Errorf("import: %w", err)
		}
	}
	i := &importer{ImportOptions: options, operator: o, queue: queue, done: options.Skip}
	if err := i.run(ctx, bufio.NewReaderSize(r, 64<<10)); err != nil {
		return i.done, fmt.Errorf("import to queue %q: lines up to %d are confirmed: %w",
			queue, i.done, err)
	}
	return i.done, nil
}

type importer struct {
	ImportOptions
	operator *Operator
	queue    string
	done     int            // lines without a gap
	failed   bool           // a line is not confirmed
	pending  []confirmation // those under way, oldest first
	bytes    int
}

type confirmation struct {
	wait  func() error // nil for an empty line
	bytes int
}

func (i *importer) run(ctx context.Context, lines *bufio.Reader) error {
	err := i.send(ctx, lines)
	for len(i.pending) > 0 { // a publish that was begun is finished
		if waitErr := i.oldest(); err == nil {
			err = waitErr
		}
	}
	return err
}

func (i *importer) send(ctx context.Context, lines *bufio.Reader) error {
	for number := 1; ctx.Err() == nil; number++ {
		line, err := lines.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		end := err != nil
		if end && len(line) == 0 {
			return nil
		}
		if number > i.Skip {
			if err := i.publish(ctx, line); err != nil {
				return fmt.Errorf("line %d: %w", number, err)
			}
		}
		if end {
			return nil
		}
	}
	return context.Cause(ctx)
}

// publish begins to publish a line.
func (i *importer) publish(ctx context.Context, line []byte) error {
	for len(i.pending) == maxUnderWay || len(i.pending) > 0 && i.bytes+len(line) > maxBytesUnderWay {
		if err := i.oldest(); err != nil {
			return err
		}
	}
	c := confirmation{bytes: len(line)}
	if len(bytes.TrimSpace(line)) > 0 {
		d, err := Decode(line)
		if err != nil {
			return err
		}
		msg := wire.Publishing(&d, func(string) bool { return false }, nil)
		c.wait, err = i.operator.startPublish(context.WithoutCancel(ctx), "", i.queue, msg)
		if err != nil {
			return err
		}
	}
	i.pending = append(i.pending, c)
	i.bytes += c.bytes
	return nil
}

// oldest waits for the oldest line under way.
func (i *importer) oldest() error {
	c := i.pending[0]
	i.pending = i.pending[1:]
	i.bytes -= c.bytes
	if c.wait != nil {
		if err := c.wait(); err != nil {
			i.failed = true
			return err
		}
	}
	if i.failed { // there is a gap before it
		return nil
	}
	i.done++
	if i.Progress != nil {
		i.Progress(i.done)
	}
	return nil
}
