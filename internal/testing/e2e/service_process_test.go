package e2e_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/plugin"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// A service in its own process is this test binary, run with the name of the test and these
// variables. Its TestMain fails if a goroutine is left.
const (
	serviceQueue     = "MILLPOND_TEST_SERVICE_QUEUE"
	servicePublisher = "MILLPOND_TEST_SERVICE_PUBLISHER" // default AMQP_URL
	serviceConfirm   = "MILLPOND_TEST_SERVICE_CONFIRM"   // timeouts
	serviceDrain     = "MILLPOND_TEST_SERVICE_DRAIN"
	serviceClose     = "MILLPOND_TEST_SERVICE_CLOSE"
	serviceCancels   = "MILLPOND_TEST_SERVICE_CANCELS" // SIGTERM cancels Run's context
	serviceAhead     = "MILLPOND_TEST_SERVICE_AHEAD"   // a copy is on its way behind the next handler
)

// service is the parent's side of a service in its own process.
type service struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines *bufio.Scanner
	said  []string
}

// startService starts the service of a test and waits until it consumes.
func startService(t *testing.T, test, url, queue string, env ...string) *service {
	t.Helper()
	s := &service{t: t, cmd: exec.Command(os.Args[0], "-test.run=^"+test+"$", "-test.v")}
	s.cmd.Env = append(append(os.Environ(), serviceQueue+"="+queue, "AMQP_URL="+url), env...)
	out, err := s.cmd.StdoutPipe()
	require.NoError(t, err)
	s.cmd.Stderr = s.cmd.Stdout
	s.lines = bufio.NewScanner(out)
	require.NoError(t, s.cmd.Start())
	late := time.AfterFunc(rig.Patience, func() { _ = s.cmd.Process.Kill() })
	t.Cleanup(func() {
		late.Stop()
		_ = s.cmd.Process.Kill()
	})
	s.await("ready")
	return s
}

// await waits for a line of the service's output.
func (s *service) await(line string) {
	s.t.Helper()
	if slices.Contains(s.said, line) {
		return
	}
	for s.lines.Scan() {
		s.said = append(s.said, s.lines.Text())
		if s.lines.Text() == line {
			return
		}
	}
	s.t.Fatalf("the service ended before it said %q:\n%s", line, strings.Join(s.said, "\n"))
}

// terminate sends SIGTERM and waits until the service closes.
func (s *service) terminate() {
	s.t.Helper()
	require.NoError(s.t, s.cmd.Process.Signal(syscall.SIGTERM))
	s.await("closing")
}

// end waits for the end of the service and requires that it closed all and left no goroutine.
func (s *service) end() {
	s.t.Helper()
	s.await("closed")
	for s.lines.Scan() {
		s.said = append(s.said, s.lines.Text())
	}
	require.NoError(s.t, s.cmd.Wait(), strings.Join(s.said, "\n"))
}

// isService reports whether this process is a service. Then it has run the service to its end.
func isService(t *testing.T) bool {
	queue := os.Getenv(serviceQueue)
	if queue == "" {
		return false
	}
	duration := func(name string, otherwise time.Duration) time.Duration {
		if text := os.Getenv(name); text != "" {
			d, err := time.ParseDuration(text)
			require.NoError(t, err)
			return d
		}
		return otherwise
	}
	cfg := wamqp.NewDurableQueueConfig(os.Getenv("AMQP_URL"))
	rig.QuorumQueue(&cfg)
	rig.QuickReconnect(&cfg)
	connection := cfg.Connection
	if url := os.Getenv(servicePublisher); url != "" {
		connection.AmqpURI = url
	}
	policy := backoff.List{time.Hour}
	confirm := topology.WithConfirmTimeout(duration(serviceConfirm, 10*time.Second))
	drain := topology.WithDrainTimeout(duration(serviceDrain, 20*time.Second))
	client := rig.Connect(t, func() (*topology.Client, error) {
		return topology.Open(context.Background(), connection, topology.PerQueue{},
			topology.WithLogger(teller{}), confirm)
	})
	sub := rig.Connect(t, func() (*topology.Subscriber, error) {
		options := []topology.SubscriberOption{topology.ForPolicy(policy), drain}
		if os.Getenv(serviceAhead) == "" {
			options = append(options, topology.WithPrefetch(1))
		}
		return client.NewSubscriber(cfg, options...)
	})
	retry, err := middleware.NewDelayedRetry(client, policy, middleware.WithLogger(teller{}))
	require.NoError(t, err)
	config := message.RouterConfig{CloseTimeout: duration(serviceClose, 0)}
	router, err := message.NewRouter(config, teller{})
	require.NoError(t, err)
	ctx := context.Background()
	if os.Getenv(serviceCancels) == "" {
		router.AddPlugin(plugin.SignalsHandler)
	} else {
		var stop func()
		ctx, stop = signal.NotifyContext(ctx, syscall.SIGTERM)
		defer stop()
		context.AfterFunc(ctx, sayClosing)
	}
	router.AddMiddleware(retry.Middleware)
	router.AddConsumerHandler("handler", queue, sub, serve)
	go func() {
		<-router.Running()
		fmt.Println("ready")
	}()
	require.NoError(t, router.Run(ctx))
	require.NoError(t, client.Close())
	fmt.Println("closed")
	return true
}

var (
	closing    = make(chan struct{})
	sayClosing = sync.OnceFunc(func() {
		fmt.Println("closing")
		close(closing)
	})
)

// serve handles a message as its body asks.
func serve(msg *message.Message) error {
	body := string(msg.Payload)
	fmt.Println("handling", body)
	begun := closing
	switch {
	case strings.HasPrefix(body, "fail"):
		return rig.ErrFailed
	case body == "stuck":
		begun = nil
	}
	select {
	case <-begun:
		<-time.After(500 * time.Millisecond)
		fmt.Println("handled", body)
		return msg.Context().Err()
	case <-msg.Context().Done():
		fmt.Println("interrupted", body)
		return msg.Context().Err()
	}
}

// teller is a logger that prints two lines for the parent.
type teller struct{ watermill.NopLogger }

func (teller) Error(msg string, _ error, _ watermill.LogFields) {
	if strings.Contains(msg, "holding it") {
		fmt.Println("holding")
	}
}

func (teller) Info(msg string, _ watermill.LogFields) {
	if msg == "Closing router" {
		sayClosing()
	}
}

func (l teller) With(watermill.LogFields) watermill.LoggerAdapter { return l }
