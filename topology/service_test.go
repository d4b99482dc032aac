package topology_test

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

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/plugin"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// A service in a process of its own is this test binary, run with the test that
// wants it and these variables; its TestMain fails where a goroutine is left.
const (
	serviceQueue     = "MILLPOND_TEST_SERVICE_QUEUE"
	servicePublisher = "MILLPOND_TEST_SERVICE_PUBLISHER" // default AMQP_URL
	serviceConfirm   = "MILLPOND_TEST_SERVICE_CONFIRM"   // timeouts
	serviceDrain     = "MILLPOND_TEST_SERVICE_DRAIN"
	serviceClose     = "MILLPOND_TEST_SERVICE_CLOSE"
	serviceCancels   = "MILLPOND_TEST_SERVICE_CANCELS" // SIGTERM cancels Run's context
)

// service is what the parent knows of it.
type service struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines *bufio.Scanner
	said  []string
}

// startService starts the service of a test; it says "ready" when it consumes.
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

// await waits until the service has said a line.
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

// terminate sends SIGTERM and waits until the service knows.
func (s *service) terminate() {
	s.t.Helper()
	require.NoError(s.t, s.cmd.Process.Signal(syscall.SIGTERM))
	s.await("closing")
}

// end waits for the end of the service, all closed and no goroutine left.
func (s *service) end() {
	s.t.Helper()
	s.await("closed")
	for s.lines.Scan() {
		s.said = append(s.said, s.lines.Text())
	}
	require.NoError(s.t, s.cmd.Wait(), strings.Join(s.said, "\n"))
}

// isService runs the service instead of the test, in the process made for it.
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
	client := rig.Connect(t, func() (*topology.Client, error) {
		return topology.Open(context.Background(), connection, topology.PerQueue{},
			topology.WithLogger(teller{}), topology.WithConfirmTimeout(duration(serviceConfirm, 10*time.Second)))
	})
	sub := rig.Connect(t, func() (*topology.Subscriber, error) {
		return client.NewSubscriber(cfg, topology.ForPolicy(policy), topology.WithDrainTimeout(duration(serviceDrain, 20*time.Second)))
	})
	retry, err := middleware.NewDelayedRetry(client, policy, middleware.WithLogger(teller{}))
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: duration(serviceClose, 0)}, teller{})
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

// serve does what the message says.
func serve(msg *message.Message) error {
	what := string(msg.Payload)
	fmt.Println("handling", what)
	begun := closing
	switch what {
	case "fail":
		return rig.ErrFailed
	case "stuck":
		begun = nil
	}
	select {
	case <-begun:
		<-time.After(500 * time.Millisecond)
		fmt.Println("handled", what)
		return msg.Context().Err()
	case <-msg.Context().Done():
		fmt.Println("interrupted", what)
		return msg.Context().Err()
	}
}

// teller is a logger that tells the parent of two things.
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
