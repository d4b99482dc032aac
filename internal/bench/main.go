// Bench measures the library beside the alternatives of a user, in one run on a RabbitMQ that it
// starts, and says for each aim whether it is met:
//
//	go run . [-rounds 7] [-only success,publish] [-scale] [-out results.json]
//
// All entries of a contest take turns, round by round. It compares the turns of each round and
// prints the median and the range of their ratios. -scale measures instead how figures grow with
// waiting messages, handlers and payloads. -out writes all samples to a file. With -fill it
// measures nothing and fills the tables of a page from such files:
//
//	go run . -fill ../../docs/notes/performance.md contests.json scale.json
//
// MILLPOND_BROKER chooses the RabbitMQ. Nothing is asserted: the exit code is 1 only if the run
// could not be done.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := start(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

// bench is one run.
type bench struct {
	broker  *broker
	rounds  int
	only    []string      // entries; nil: all
	counted time.Duration // measured in this turn so far
	say     func(format string, args ...any)
}

type part struct {
	name string
	run  func(*bench, context.Context) ([]result, error)
}

var (
	contests = []part{
		{"success", (*bench).success},
		{"publish", (*bench).publish},
		{"failing", (*bench).failing},
		{"pipelined", (*bench).pipelined},
		{"healthy", (*bench).healthy},
		{"consuming", (*bench).consuming},
	}
	comparisons = []part{{"peers", (*bench).peers}}
	scales      = []part{
		{"payload", (*bench).scalePayload},
		{"waiting", (*bench).scaleWaiting},
		{"handlers", (*bench).scaleHandlers},
		{"expiring", (*bench).scaleExpiring},
		{"nodes", (*bench).scaleNodes},
		{"queues", (*bench).scaleQueues},
		{"recovery", (*bench).scaleRecovery},
		{"storm", (*bench).scaleStorm},
		{"raft", (*bench).scaleRaft},
	}
)

func start(ctx context.Context, args []string, out io.Writer) (err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	rounds := flags.Int("rounds", 7, "`number` of turns of each entry")
	only := flags.String("only", "", "`names` of the contests or scales to hold, separated by commas")
	scale := flags.Bool("scale", false, "measure how figures grow, instead of the contests")
	file := flags.String("out", "", "`file` for all samples, as JSON")
	var entries []string
	flags.Func("entries", "the `name` of an entry that takes part; may be repeated; default: all",
		func(name string) error {
			entries = append(entries, name)
			return nil
		})
	profile := flags.String("cpuprofile", "",
		"`file` for a CPU profile of this process, best with one contest and -entries millpond")
	page := flags.String("fill", "", "`page` whose tables are filled from the files in the arguments")
	peers := flags.Bool("peers", false, "measure other systems that try jobs again")
	worker := flags.Bool("peer", false, "be a worker of one of them")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *worker {
		return beWorker(ctx, flags.Args(), out)
	}
	if *page != "" {
		return fill(*page, flags.Args())
	}
	parts := contests
	if *scale {
		parts = scales
	} else if *peers {
		parts = comparisons
	}
	if parts, err = chosen(parts, *only); err != nil {
		return err
	}
	if *rounds < 1 || flags.NArg() > 0 {
		return errors.New("rounds must be positive, and there are no arguments but flags")
	}

	if *profile != "" {
		file, err := os.Create(*profile)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		if err := pprof.StartCPUProfile(file); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	broker, err := startBroker(ctx)
	if err != nil {
		return err
	}
	b := &bench{
		broker: broker, rounds: *rounds, only: entries,
		say: func(format string, args ...any) { fmt.Fprintf(out, format, args...) },
	}
	r := run{Machine: machineOf(broker), Rounds: *rounds}
	fmt.Fprintf(out, "%s\n\n", r.Machine)
	for _, p := range parts {
		fmt.Fprintf(out, "%s ...\n", p.name)
		results, partErr := p.run(b, ctx)
		r.Results = append(r.Results, results...)
		if partErr != nil {
			err = fmt.Errorf("%s: %w", p.name, partErr)
			break
		}
	}
	r.Results = append(r.Results, r.ofLaws()...)
	r.print(out)
	if *file != "" {
		err = errors.Join(err, r.write(*file))
	}
	return errors.Join(err, broker.close())
}

func chosen(parts []part, only string) ([]part, error) {
	if only == "" {
		return parts, nil
	}
	var list []part
	for name := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(parts, func(p part) bool { return p.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no %q", name)
		}
		list = append(list, parts[i])
	}
	return list, nil
}
