package docs_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// buildTool builds the program millpond from the checkout and returns its path.
func buildTool(t *testing.T) string {
	t.Helper()
	built := filepath.Join(t.TempDir(), "millpond")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", built, "./cmd/millpond")
	cmd.Dir = root
	said, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", said)
	return built
}

// toolWords returns the words of a command of the tool, and false for another command.
func toolWords(c command) ([]string, bool) {
	text := fromAClone.ReplaceAllString(c.text, "millpond")
	text = strings.TrimPrefix(text, `eval "$(`)
	words := wordsOf(text)
	return words[1:], words[0] == "millpond"
}

// Every command of the tool in a block of a page runs against a broker as it stands there: the
// queue orders exists as its flags say, and letters are dead. It ends with exit code 0. A plan
// on a page is the output of the tool.
func TestToolCommandsOfPages(t *testing.T) {
	t.Parallel()
	node, api := testbroker.Managed(t, "")
	tool := buildTool(t)
	run := 0
	var desks atomic.Int32
	work := func(t *testing.T, c command) error {
		vhost := fmt.Sprint("desk-", desks.Add(1))
		node.Grant(t, testbroker.Everything(vhost, "guest"))
		d := &desk{t: t, tool: tool, folder: t.TempDir(), url: node.URL() + vhost, api: api}
		d.environment = append(os.Environ(), "AMQP_URL="+d.url, "MILLPOND_MANAGEMENT_URL="+api,
			"MILLPOND_AUDIT="+filepath.Join(d.folder, "audit.jsonl"),
			"PATH="+filepath.Dir(tool)+":"+os.Getenv("PATH"), "NO_COLOR=1")
		d.furnish(c)
		return d.work(c)
	}
	wrong := command{text: "millpond dead list orders --limt 1"}
	require.ErrorContains(t, work(t, wrong), "exit code 2")
	require.ErrorContains(t, work(t, command{
		text: "millpond plan orders --policy 1s", output: "another plan\n",
	}), "prints")
	for _, c := range allCommands(t) {
		words, is := toolWords(c)
		if is && words[0] != "serve" && c.page != gettingStarted { // make test-page runs serve
			run++
			t.Run(fmt.Sprintf("%s:%d", c.page, c.line), func(t *testing.T) {
				t.Parallel()
				require.NoError(t, work(t, c))
			})
		}
	}
	require.Greater(t, run, 20)
}

// desk is the place of an engineer who types a command of a page: a folder, and
// its own vhost on a broker, with the queue orders.
type desk struct {
	t                      *testing.T
	tool, folder, url, api string
	environment            []string
}

// shaping are the flags that say how the queues of a service are.
var shaping = []string{"--policy", "--strategy", "--type", "--prefix", "--return-to", "--dlq"}

var letterID = regexp.MustCompile(`^[a-z]+-[0-9]+$`)

// furnish makes the queue orders, its plan as the command's flags say, letters that are dead and
// the file of an import.
func (d *desk) furnish(c command) {
	d.t.Helper()
	words, _ := toolWords(c)
	declare := []string{"declare", "orders"}
	dead, old := "orders.dlq", ""
	ids := []string{}
	for i, word := range words {
		switch {
		case i+1 < len(words) && slices.Contains(shaping, word):
			if word == "--policy" && strings.Contains(c.text, " declare ") {
				continue // it is the command's own work
			}
			declare = append(declare, word, words[i+1])
			if word == "--dlq" {
				dead = words[i+1]
			}
		case i+1 < len(words) && word == "--old-policy":
			old = words[i+1]
		case letterID.MatchString(word):
			ids = append(ids, word)
		}
	}
	ch := testbroker.Channel(d.t, d.url)
	_, err := ch.QueueDeclare("orders", true, false, false, false,
		amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 1 << 30})
	require.NoError(d.t, err)
	for _, name := range []string{"events"} { // of --return-to
		require.NoError(d.t, ch.ExchangeDeclare(name, "topic", true, false, false, false, nil))
	}
	if strings.Contains(c.text, " declare ") {
		return
	}
	d.must(declare...)
	if old != "" {
		d.must("declare", "orders", "--policy", old)
	}
	if words[0] == "brake" {
		rig.StartBraked(d.t, rig.Braked{URL: d.url, Queue: "mail", Name: "payments", Handle: rig.Succeed})
	}
	if words[0] == "brake" && slices.Contains(words, "start") {
		d.must("brake", "stop", words[len(words)-1])
	}
	if words[0] == "order" {
		d.must("declare", "orders", "--strategy", "inorder")
		d.block(words[len(words)-1])
	}
	if words[0] == "stranded" {
		d.must("declare", "orders", "--strategy", "shared")
		for _, id := range append(ids, "order-0") {
			rig.Publish(d.t, d.url, "", "millpond.stranded", amqp.Publishing{
				MessageId: id, Headers: amqp.Table{header.Queue: "orders"}, Body: []byte(`{"order":17}`),
			})
		}
	}
	for n, id := range append(ids, "order-0", "order-1", "order-2") {
		d.publishDead(dead, id, []string{
			"order 17: cannot parse total", "dial tcp 10.0.0.7:443: connection refused",
		}[n%2])
	}
	waits := slices.Contains(words, "release") || slices.Contains(words, "cancel")
	if waits && words[0] != "order" {
		d.wait(words, append(ids, "order-0"))
	}
	if slices.Contains(words, "replay") { // the service runs
		handled, err := ch.Consume("orders", "", true, false, false, false, nil)
		require.NoError(d.t, err)
		go func() {
			for range handled {
			}
		}()
	}
	for i, word := range words {
		if word == "--file" && slices.Contains(words, "import") {
			d.must("dead", "export", "orders", "--all", "--file", words[i+1])
		}
	}
}

// block publishes a dead letter that blocks a key.
func (d *desk) block(key string) {
	d.t.Helper()
	rig.Publish(d.t, d.url, "", "orders.line", amqp.Publishing{
		MessageId: "order-17", DeliveryMode: amqp.Persistent, Timestamp: time.Now(),
		Headers: amqp.Table{keys.Key: key, keys.Line: "block 1 1-1"},
	})
	rig.Publish(d.t, d.url, "", "orders.dlq", amqp.Publishing{
		MessageId: "order-17", DeliveryMode: amqp.Persistent, Body: []byte(`{"order":17}`),
		Headers: amqp.Table{
			header.DeadQueue: "orders", keys.DeadKey: key, keys.DeadLine: "block 1 1-1",
		},
	})
}

// wait publishes messages to the longest wait queue of the command's policy.
func (d *desk) wait(words, ids []string) {
	d.t.Helper()
	var delays backoff.List
	if at := slices.Index(words, "--policy"); at >= 0 {
		for text := range strings.SplitSeq(words[at+1], ",") {
			delay, err := time.ParseDuration(text)
			require.NoError(d.t, err)
			delays = append(delays, delay)
		}
	}
	plan, err := topology.PerQueue{}.Plan("orders", delays)
	require.NoError(d.t, err)
	longest := plan.WaitSteps[len(plan.WaitSteps)-1]
	for _, id := range ids {
		rig.Publish(d.t, d.url, "", longest.RoutingKey, amqp.Publishing{
			MessageId: id, DeliveryMode: amqp.Persistent, Body: []byte(`{"order":17}`),
		})
	}
}

func (d *desk) publishDead(queue, id, text string) {
	d.t.Helper()
	state := header.RetryState{
		Failures: 3, Reason: header.ReasonExhausted, Class: header.ClassRetryable, Error: text,
		Handler: "ship", DeadAt: time.Now(),
	}
	m := amqp.Publishing{
		MessageId: id, DeliveryMode: amqp.Persistent, Body: []byte(`{"order":17}`),
		Headers: amqp.Table{"tenant": "acme"},
	}
	for key, value := range state.DeadHeaders("orders") {
		m.Headers[key] = value
	}
	rig.Publish(d.t, d.url, "", queue, m)
}

// must runs the tool.
func (d *desk) must(args ...string) {
	d.t.Helper()
	cmd := exec.CommandContext(d.t.Context(), d.tool, args...)
	cmd.Dir, cmd.Env = d.folder, d.environment
	said, err := cmd.CombinedOutput()
	require.NoError(d.t, err, "%q: %s", args, said)
}

var (
	placeholderAPI  = regexp.MustCompile(`https?://[^\s'"]+`)
	placeholderURL  = regexp.MustCompile(`amqps?://[^\s'"]+`)
	trailingSpaces  = regexp.MustCompile(`(?m) +$`)
	withoutTerminal = "there is no terminal to ask on: pass --yes"
)

// printed reports whether a page shows the output of a command, up to a line with … if there is
// one. Editors cut spaces at the end of a line, and so do pages.
func printed(shows, prints string) bool {
	shows = strings.TrimSpace(trailingSpaces.ReplaceAllString(shows, ""))
	prints = strings.TrimSpace(trailingSpaces.ReplaceAllString(prints, ""))
	start, cut := strings.CutSuffix(shows, "\n…")
	return shows == prints || cut && strings.HasPrefix(prints, start+"\n")
}

// work runs the command in a shell and returns why the page is wrong.
func (d *desk) work(c command) error {
	text := fromAClone.ReplaceAllString(c.text, "millpond")
	text = placeholderAPI.ReplaceAllString(text, d.api)
	text = placeholderURL.ReplaceAllString(text, d.url)
	ctx, cancel := context.WithTimeout(d.t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", text)
	cmd.Dir, cmd.Env = d.folder, d.environment
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		return err
	}
	if strings.Contains(text, "--watch") { // until Ctrl-C
		interrupt := time.AfterFunc(3*time.Second, func() {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
		})
		defer interrupt.Stop()
	}
	_ = cmd.Wait() // the exit code says it
	switch code := cmd.ProcessState.ExitCode(); {
	case code == 2 && strings.Contains(errs.String(), withoutTerminal):
		return nil // it asks on a terminal
	case code == 1 && strings.Contains(text, "--strict"):
		return nil // a node that has just started has not shown its alarms to verify
	case code != 0:
		return fmt.Errorf("%s\nexit code %d: %s%s", c, code, out.String(), errs.String())
	}
	if c.output != "" && strings.HasPrefix(text, "millpond plan") && !printed(c.output, out.String()) {
		return fmt.Errorf("%s\nprints %s, and the page shows %s", c, out.String(), c.output)
	}
	return nil
}
