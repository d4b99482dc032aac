package e2e_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/topology"
)

// timeWithDigits is a time in a header; its last digits are missing if they are zero.
var timeWithDigits = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)

// bytesOf returns the bytes on the wire of each header that the library writes, as if the queue
// were called orders, every time had nine digits, and the nonce were the one of docs/wire.md.
func bytesOf(t *testing.T, headers amqp.Table, queue string) (of map[string]int, sum int) {
	t.Helper()
	of = map[string]int{}
	var whole amqp.Publishing
	whole.Headers = amqp.Table{}
	for key, value := range headers {
		if !strings.HasPrefix(key, "millpond-") && !strings.HasSuffix(key, "_poisoned") {
			continue // the broker's own
		}
		text, isText := value.(string)
		require.True(t, isText, key)
		if key == keys.Publish {
			text = "78c10fa3699e960c-1"
		}
		text = strings.ReplaceAll(text, queue, "orders")
		text = timeWithDigits.ReplaceAllString(text, "2026-03-01T12:00:00.123456789Z")
		one := amqp.Publishing{Headers: amqp.Table{key: text}}
		none := amqp.Publishing{}
		of[key] = wire.PropertiesSize(&one) - wire.PropertiesSize(&none) - 4 // of the table itself
		whole.Headers[key], sum = text, sum+of[key]
	}
	require.Equal(t, 14+4+sum, wire.PropertiesSize(&whole), "the sum is the size on the wire")
	return of, sum
}

// mostHeaderBytes bounds the headers of a retry.
const mostHeaderBytes = 300

// Given a message that fails on every attempt, then its headers take as many bytes as the tables of
// docs/notes/performance.md say, field by field. TestPropertiesSizeIsTheSizeOnTheWire compares the
// size of a header with the bytes that a broker gets.
func TestBytesOfTheHeadersAreDocumented(t *testing.T) {
	t.Parallel()
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		var seen []amqp.Table // of each attempt
		s := rig.Start(t, rig.Config{
			URL:    broker.URL(),
			Policy: backoff.List{time.Second, time.Second, time.Second, time.Second, time.Second},
			Handle: func(msg *message.Message) error {
				raw, _ := topology.Received(msg.Context())
				seen = append(seen, raw.Headers)
				return errors.New("no stock is left")
			},
		})
		s.Send("order 7")
		dead := s.DeadLetter()
		s.Stop()
		require.Len(t, seen, 6)
		require.Empty(t, ourHeaders(seen[0]))

		columns := []amqp.Table{seen[1], seen[2], seen[5], dead.Headers}
		sizes, sums, names := make([]map[string]int, 4), make([]int, 4), map[string]bool{}
		for i, headers := range columns {
			sizes[i], sums[i] = bytesOf(t, headers, s.Queue)
			for name := range sizes[i] {
				names[name] = true
			}
		}
		var table strings.Builder
		row := func(name string, cell func(column int) int) {
			fmt.Fprintf(&table, "| %s |", name)
			for i := range columns {
				if n := cell(i); n > 0 {
					fmt.Fprintf(&table, " %d |", n)
				} else {
					table.WriteString(" |")
				}
			}
			table.WriteString("\n")
		}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			row("`"+name+"`", func(i int) int { return sizes[i][name] })
		}
		row("together", func(i int) int { return sums[i] })
		page, err := os.ReadFile("../../../docs/notes/performance.md")
		require.NoError(t, err)
		if !strings.Contains(string(page), table.String()) {
			t.Fatalf("docs/notes/performance.md has another table; measured:\n%s", table.String())
		}
		require.LessOrEqual(t, sums[0], mostHeaderBytes)
		require.Len(t, sizes[0], 5)
	})
}

func ourHeaders(headers amqp.Table) (names []string) {
	for name := range headers {
		if strings.HasPrefix(name, "millpond-") {
			names = append(names, name)
		}
	}
	return names
}
