package operate

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/topology"
)

// Export writes letters, as Dead returns them, to w, each a line of JSON that Import reads (see
// Encode), and returns their number. It ends with the first error of the letters or of w.
func Export(w io.Writer, letters iter.Seq2[Letter, error]) (n int, err error) {
	for l, err := range letters {
		var line []byte
		if err == nil {
			line, err = Encode(l.Delivery)
		}
		if err == nil {
			_, err = w.Write(append(line, '\n'))
		}
		if err != nil {
			return n, fmt.Errorf("export: %w", err)
		}
		n++
	}
	return n, nil
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
	in := bufio.NewReaderSize(r, 64<<10)
	lines = options.Skip // confirmed, without a gap
	for read, more := 0, true; more && err == nil; {
		var waits []func() error
		for size := 0; more && len(waits) < maxUnderWay && size < maxBytesUnderWay; {
			line, readErr := in.ReadBytes('\n')
			if more = readErr == nil; !more && !errors.Is(readErr, io.EOF) {
				err = readErr
			}
			if err == nil && len(line) > 0 {
				err = context.Cause(ctx)
			}
			if err != nil || len(line) == 0 {
				break
			}
			if read++; read <= options.Skip {
				continue
			}
			var wait func() error
			if wait, err = o.importLine(ctx, queue, line); err != nil {
				err = fmt.Errorf("line %d: %w", read, err)
				break
			}
			waits, size = append(waits, wait), size+len(line)
		}
		var failed error // after an error, too, a publish that was begun is finished
		for _, wait := range waits {
			if failed = cmp.Or(failed, wait()); failed != nil {
				continue
			}
			if lines++; options.Progress != nil {
				options.Progress(lines)
			}
		}
		err = cmp.Or(err, failed)
	}
	if err != nil {
		err = fmt.Errorf("import to queue %q: lines up to %d are confirmed: %w", queue, lines, err)
	}
	return lines, err
}

// importLine begins to publish a line. An empty one is none.
func (o *Operator) importLine(
	ctx context.Context, queue string, line []byte,
) (wait func() error, err error) {
	if len(bytes.TrimSpace(line)) == 0 {
		return func() error { return nil }, nil
	}
	d, err := Decode(line)
	if err != nil {
		return nil, err
	}
	msg := wire.Publishing(&d, func(string) bool { return false }, nil)
	return o.startPublish(context.WithoutCancel(ctx), "", queue, msg)
}
