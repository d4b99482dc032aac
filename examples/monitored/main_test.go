package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

const patience = 90 * time.Second

func TestMain(m *testing.M) { testbroker.Main(m, func() error { return goleak.Find() }) }

// buffer may be read while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// lines returns the JSON objects that were written, one a line.
func (b *buffer) lines(t *testing.T) []map[string]any {
	t.Helper()
	var all []map[string]any
	for scanner := bufio.NewScanner(strings.NewReader(b.String())); scanner.Scan(); {
		var line map[string]any
		require.NoError(t, json.Unmarshal(scanner.Bytes(), &line), "%s", scanner.Text())
		all = append(all, line)
	}
	return all
}

// running is the program. It runs until the test ends.
type running struct {
	queue, address string
	stdout, stderr buffer
	stop           func()
}

func start(t *testing.T, url string, args ...string) *running {
	t.Helper()
	r := &running{queue: testbroker.Queue(t)}
	for _, wait := range []string{"250ms", "500ms", "1s", "2s", "3s", "4s"} {
		testbroker.Delete(t, r.queue+".wait."+wait)
	}
	ctx, cancel := context.WithCancel(context.Background())
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, append([]string{
			"--url", url, "--queue", r.queue, "--listen", "127.0.0.1:0", "--pace", "50ms",
		}, args...), &r.stdout, &r.stderr)
	}()
	r.stop = sync.OnceFunc(func() {
		cancel()
		require.Zero(t, <-code, r.stderr.String())
	})
	t.Cleanup(r.stop)
	testbroker.WaitFor(t, "the address of /metrics", patience, func() bool {
		for _, line := range r.stderr.lines(t) {
			if line["msg"] == "Serving" {
				r.address, _ = line["address"].(string)
			}
		}
		return r.address != ""
	})
	return r
}

func get(t *testing.T, address string) string {
	t.Helper()
	client := &http.Client{
		Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second,
	}
	resp, err := client.Get(address)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
	return string(body)
}

func TestServiceIsSeen(t *testing.T) {
	t.Parallel()
	r := start(t, testbroker.URL(t))
	testbroker.WaitFor(t, "a dead letter, a retry, and one that came back later", patience,
		func() bool {
			text := get(t, "http://"+r.address+"/metrics")
			dead, retried, aside := false, false, false
			for line := range strings.Lines(text) {
				zero := strings.HasSuffix(line, " 0\n")
				dead = dead || !zero && strings.HasPrefix(line, "millpond_dead_letters_total{") &&
					strings.Contains(line, `reason="permanent"`)
				retried = retried || !zero && strings.HasPrefix(line,
					"millpond_time_until_success_seconds_count{")
				aside = aside || !zero && strings.HasPrefix(line, "millpond_set_aside_total{")
			}
			return dead && retried && aside && strings.Contains(text,
				`millpond_queue_messages_ready{name="`+r.queue+`.dlq"`)
		})
	get(t, "http://"+r.address+"/healthz")
	r.stop()

	messages := map[any]bool{}
	for _, line := range r.stderr.lines(t) {
		messages[line["msg"]] = true
		if line["msg"] == "Message will be retried" {
			for _, key := range []string{
				"message_id", "message_uuid", "correlation_id", "attempt",
				"handler", "queue", "topic", "class", "delay", "error",
			} {
				require.Contains(t, line, key)
			}
		}
	}
	require.True(t, messages["Message will be retried"] && messages["Message dead-lettered"] &&
		messages["Message snoozed"], messages)
	linked := 0
	for _, span := range r.stdout.lines(t) {
		require.Contains(t, []any{"publish " + r.queue, "process " + r.queue}, span["Name"])
		if links, _ := span["Links"].([]any); len(links) > 0 {
			linked++
		}
	}
	require.Positive(t, linked, "spans that link to the attempt before")
}

func TestArguments(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args []string
		code int
		says string
	}{
		"help":         {[]string{"--help"}, 0, "Usage: monitored"},
		"unknown flag": {[]string{"--urls", "x"}, 2, "flag provided but not defined"},
		"argument":     {[]string{"now"}, 2, `unexpected argument "now"`},
		"no pace":      {[]string{"--pace", "0s"}, 2, "--pace 0s is not positive"},
		"no URL":       {[]string{"--url", "nowhere"}, 1, "AMQP URL is invalid"},
		"no broker": {
			[]string{"--url", "amqp://guest:secret@127.0.0.1:1/"}, 1, "connect to RabbitMQ at 127.0.0.1:1",
		},
		"no such API": {
			[]string{"--url", "amqp://guest:guest@127.0.0.1:1/", "--management", "secret"},
			1, "WithManagement: ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			require.Equal(t, test.code, run(t.Context(), test.args, &stdout, &stderr))
			require.Empty(t, stdout.String())
			require.Contains(t, stderr.String(), test.says)
			require.NotContains(t, stderr.String(), "secret@")
		})
	}
}
