// Walk lists the files and functions of the library that one failed message passes, from its
// delivery until the ack of the delivery that was republished:
//
//	go run -cover -covermode=atomic -coverpkg=./... ./internal/tools/walk
//
// AMQP_URL must name a broker. A function that also runs while no message is there belongs to a
// goroutine that only ticks, and is left out. A literal function counts as its enclosing one.
//
// With the argument replay it lists the functions of tool and library that millpond dead replay
// passes for one dead letter, without those that millpond help passes, too. It starts its own
// RabbitMQ with a management API.
package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/coverage"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

const module = "github.com/millpond-go/millpond/"

// main runs walk as the test binaries do, because the helpers need a test.
func main() {
	every := func(string, string) (bool, error) { return true, nil }
	testing.Main(every, []testing.InternalTest{{Name: "walk", F: walk}}, nil, nil)
}

func walk(t *testing.T) {
	if flag.Arg(0) == "replay" {
		replay(t)
		return
	}
	fail(t)
}

// fail lets one message fail in a service that has retried a message before, as the helpers of
// tests start one. The failed messages wait until the program has ended.
func fail(t *testing.T) {
	s := rig.Start(t, rig.Config{
		Policy: backoff.List{30 * time.Second},
		Handle: func(msg *message.Message) error {
			if string(msg.Payload) == "fails" {
				return rig.ErrFailed
			}
			return nil
		},
	})
	ran(t, func() { s.Send("succeeds", "fails") }) // channels open, queues are declared
	walked := ran(t, func() { s.Send("fails") })
	idle := ran(t, func() {})
	require.Equal(t, 2, s.Waiting())
	tell("failed message", walked, idle)
}

// replay lets the tool move a dead letter back.
func replay(t *testing.T) {
	node, api := testbroker.Managed(t, "")
	s := rig.Start(t, rig.Config{
		URL: node.URL(), Queue: "orders", Keep: true, Policy: backoff.None{},
		Handle: func(*message.Message) error { return rig.ErrFailed },
	})
	s.Send("fails")
	rig.AwaitDepth(t, node.URL(), "orders.dlq", 1)
	s.Stop()
	tool := filepath.Join(t.TempDir(), "millpond")
	output, err := exec.Command("go", "build", "-cover", "-coverpkg="+module+"...", "-o", tool,
		module+"cmd/millpond").CombinedOutput()
	require.NoError(t, err, string(output))
	passed := func(args ...string) map[string][]string {
		folder := t.TempDir()
		run := exec.Command(tool, args...)
		run.Env = append(os.Environ(), "GOCOVERDIR="+folder)
		output, err := run.CombinedOutput()
		require.NoError(t, err, string(output))
		return functions(t, folder)
	}
	help := passed("help")
	walked := passed("--url", node.URL(), "--management", api, "dead", "replay", "--all", "orders")
	require.Equal(t, 1, testbroker.Depth(t, node.URL(), "orders"))
	tell("replay", walked, help)
}

// tell prints what ran and did not run besides, by file.
func tell(what string, walked, besides map[string][]string) {
	files, all := 0, 0
	for _, file := range slices.Sorted(maps.Keys(walked)) {
		functions := slices.DeleteFunc(walked[file], func(function string) bool {
			return slices.Contains(besides[file], function)
		})
		if len(functions) > 0 {
			files++
			all += len(functions)
			fmt.Printf("  %s: %s\n", file, strings.Join(functions, " "))
		}
	}
	fmt.Printf("one %s passes %d functions in %d files\n", what, all, files)
}

// ran returns for each file of the library the functions that run within a second after do.
func ran(t *testing.T, do func()) map[string][]string {
	require.NoError(t, coverage.ClearCounters())
	do()
	<-time.After(time.Second) // no event tells when the broker has the ack
	folder := t.TempDir()
	require.NoError(t, coverage.WriteMetaDir(folder))
	require.NoError(t, coverage.WriteCountersDir(folder))
	return functions(t, folder)
}

// functions returns the functions that have run, by file.
func functions(t *testing.T, folder string) map[string][]string {
	report, err := exec.Command("go", "tool", "covdata", "func", "-i="+folder).Output()
	require.NoError(t, err)
	found := map[string][]string{}
	for line := range strings.Lines(string(report)) {
		fields := strings.Fields(line)
		if len(fields) != 3 || fields[2] == "0.0%" {
			continue
		}
		file, _, _ := strings.Cut(strings.TrimPrefix(fields[0], module), ":")
		if strings.HasSuffix(file, ".go") && !strings.HasPrefix(file, "internal/tools/") &&
			!strings.HasPrefix(file, "internal/testing/") {
			found[file] = append(found[file], fields[1])
		}
	}
	return found
}
