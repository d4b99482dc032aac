// Walk lists the files and functions of the library that one failed message passes, from its
// delivery until the ack of the delivery that was republished:
//
//	go run -cover -covermode=atomic -coverpkg=./... ./internal/tools/walk
//
// AMQP_URL must name a broker. A function that also runs while no message is there belongs to a
// goroutine that only ticks, and is left out. A literal function counts as its enclosing one.
package main

import (
	"fmt"
	"maps"
	"os/exec"
	"runtime/coverage"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
)

const module = "github.com/millpond-go/millpond/"

// main runs walk as the test binaries do, because the helpers need a test.
func main() {
	every := func(string, string) (bool, error) { return true, nil }
	testing.Main(every, []testing.InternalTest{{Name: "walk", F: walk}}, nil, nil)
}

// walk lets one message fail in a service that has retried a message before, as the helpers of
// tests start one. The failed messages wait until the program has ended.
func walk(t *testing.T) {
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
	files := 0
	for _, file := range slices.Sorted(maps.Keys(walked)) {
		functions := slices.DeleteFunc(walked[file], func(function string) bool {
			return slices.Contains(idle[file], function)
		})
		if len(functions) > 0 {
			files++
			fmt.Printf("  %s: %s\n", file, strings.Join(functions, " "))
		}
	}
	fmt.Printf("one failed message passes %d files\n", files)
}

// ran returns for each file of the library the functions that run within a second after do.
func ran(t *testing.T, do func()) map[string][]string {
	require.NoError(t, coverage.ClearCounters())
	do()
	<-time.After(time.Second) // no event tells when the broker has the ack
	folder := t.TempDir()
	require.NoError(t, coverage.WriteMetaDir(folder))
	require.NoError(t, coverage.WriteCountersDir(folder))
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
