// Command monitored delivers webhooks as examples/webhooks does, without an end, and can be
// watched: metrics for Prometheus at /metrics, a readiness probe at /healthz, the log as JSON on
// stderr, and traces on stdout.
//
//	go run . --listen 127.0.0.1:9095
//
// docs/monitoring has the dashboard and the alerts for its metrics.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/millpond-go/millpond"
	"github.com/millpond-go/millpond/examples/internal/program"
	"github.com/millpond-go/millpond/examples/internal/webhook"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/metrics"
	"github.com/millpond-go/millpond/middleware/tracing"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/management"
	"github.com/millpond-go/millpond/topology/operate"
)

const usage = `Usage: monitored [--url URL] [--management URL] [--listen ADDRESS]
                 [--queue NAME] [--pace DURATION]

Delivers webhooks to a receiver that fails in many ways, until it is interrupted.
Its queues stay, as the queues of a service do.

Exit status: 0 after an interrupt, 1 if something went wrong, 2 for a wrong argument.

`

func main() { program.Exit(run) }

// config has the values of the flags.
type config struct {
	url, management, listen, queue string
	pace                           time.Duration
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cfg, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	logger := slog.New(slog.NewJSONHandler(stderr, nil))
	if err := serve(ctx, cfg, logger, stdout); err != nil {
		logger.Error("Ended", "error", err.Error())
		return 1
	}
	return 0
}

// parse prints its error on stderr.
func parse(args []string, stderr io.Writer) (config, error) {
	flags := flag.NewFlagSet("monitored", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}
	var cfg config
	// Defaults that may hold a password are not shown.
	flags.StringVar(&cfg.url, "url", "",
		"`URL` of the broker (default AMQP_URL, else "+program.DefaultURL+")")
	flags.StringVar(&cfg.management, "management", "",
		"`URL` of the management API, for messages that are held (default MANAGEMENT_URL, else none)")
	flags.StringVar(&cfg.listen, "listen", "127.0.0.1:9095", "`address` of /metrics and /healthz")
	flags.StringVar(&cfg.queue, "queue", "millpond-monitored", "`name` of the queue")
	flags.DurationVar(&cfg.pace, "pace", 200*time.Millisecond, "`time` between two webhooks")
	if err := flags.Parse(args); err != nil {
		return cfg, err
	}
	cfg.url = program.URL(cfg.url)
	cfg.management = cmp.Or(cfg.management, os.Getenv("MANAGEMENT_URL"))
	var err error
	switch {
	case flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case cfg.pace <= 0:
		err = fmt.Errorf("--pace %v is not positive", cfg.pace)
	}
	if err != nil {
		fmt.Fprintf(stderr, "monitored: %v\n", err)
	}
	return cfg, err
}

// lanes is the number of webhooks in progress at once.
const lanes = 4

// signals has the outputs by which the service is watched.
type signals struct {
	logger   watermill.LoggerAdapter
	registry *prometheus.Registry
	metrics  *metrics.Metrics
	provider *sdktrace.TracerProvider
	tracing  *tracing.Tracing
}

func newSignals(logger *slog.Logger, traces io.Writer) (*signals, error) {
	exporter, err := stdouttrace.New(stdouttrace.WithWriter(traces))
	if err != nil {
		return nil, err
	}
	m, err := metrics.New()
	if err != nil {
		return nil, err
	}
	s := &signals{
		logger:   watermill.NewSlogLogger(logger),
		registry: prometheus.NewRegistry(), metrics: m,
		provider: sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter)),
	}
	s.tracing = tracing.New(tracing.WithTracerProvider(s.provider))
	s.registry.MustRegister(m, collectors.NewGoCollector())
	return s, nil
}

// serve runs until ctx is done.
func serve(ctx context.Context, cfg config, logger *slog.Logger, traces io.Writer) (err error) {
	s, err := newSignals(logger, traces)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.provider.Shutdown(context.WithoutCancel(ctx))) }()

	options := []topology.Option{
		topology.WithLogger(s.logger), topology.WithObserver(s.metrics, s.tracing),
	}
	looks := []operate.Option{operate.WithLogger(s.logger)}
	if cfg.management != "" {
		options = append(options, topology.WithManagement(management.At(cfg.management)))
		looks = append(looks, operate.WithManagement(cfg.management))
	}
	queue := millpond.QuorumQueue(amqp.NewDurableQueueConfig(cfg.url))
	client, err := topology.Open(ctx, queue.Connection, topology.PerQueue{}, options...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	operator, err := operate.Open(ctx, cfg.url, looks...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, operator.Close()) }()

	sender := webhook.NewSender(lanes)
	defer sender.Close()
	router, err := s.route(client, operator, queue, cfg.queue, sender)
	if err != nil {
		return err
	}
	service, err := program.Start(ctx, router, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, service.Close()) }()

	server, err := s.listen(cfg.listen, client)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	logger.Info("Serving", "address", server.Addr)
	return s.publish(ctx, queue, cfg)
}

// route makes the router with its consumer, and registers the metrics.
func (s *signals) route(
	client *topology.Client, operator *operate.Operator, cfg amqp.Config, queue string,
	sender *webhook.Sender,
) (*message.Router, error) {
	retry, err := webhook.NewRetry(client)
	if err != nil {
		return nil, err
	}
	sub, err := client.NewSubscriber(cfg, retry,
		topology.ForPolicy(webhook.RetryAfters), topology.WithConcurrency(lanes))
	if err != nil {
		return nil, err
	}
	plan, err := topology.PlanFor(topology.PerQueue{}, queue,
		append(retry.PoliciesFor(queue, queue), webhook.RetryAfters)...)
	if err != nil {
		return nil, err
	}
	depth, err := metrics.NewCollector(client, operator, []topology.Plan{plan})
	if err != nil {
		return nil, err
	}
	if err := s.registry.Register(depth); err != nil {
		return nil, err
	}
	router, err := message.NewRouter(message.RouterConfig{}, s.logger)
	if err != nil {
		return nil, err
	}
	// the span lasts until the message is handed over
	router.AddMiddleware(s.tracing.Middleware, retry.Middleware)
	router.AddConsumerHandler("webhooks", queue, sub, polite(sender.Deliver))
	return router, nil
}

var errQuiet = errors.New("the receiver has asked for some quiet")

// polite lets the deliveries to one receiver come back later, without a failure.
func polite(deliver message.NoPublishHandlerFunc) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		if middleware.StateOf(msg.Context()).FirstSeen.IsZero() && msg.Metadata[storyKey] == "quiet" {
			return middleware.Snooze(errQuiet, time.Second)
		}
		return deliver(msg)
	}
}

// listen serves metrics and the readiness probe.
func (s *signals) listen(address string, client *topology.Client) (*http.Server, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{Registry: s.registry}))
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		if err := client.Healthy(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	server := &http.Server{
		Addr: listener.Addr().String(), Handler: mux, ReadHeaderTimeout: 5 * time.Second,
	}
	go func() { _ = server.Serve(listener) }() // ends with Close
	return server, nil
}

// storyKey is the metadata with the receiver's answer to a webhook.
const storyKey = "story"

// stories come in turn. Most webhooks have none, and go well.
var stories = []string{
	"gone", "hopeless", "flaky", "", "flaky", "quiet", "outage", "", "dropped", "limited",
	"", "", "flaky", "", "", "", "", "", "", "",
}

// publish publishes webhooks until ctx is done, each within its own span.
func (s *signals) publish(ctx context.Context, queue amqp.Config, cfg config) (err error) {
	publisher, err := amqp.NewPublisher(queue, s.logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, publisher.Close()) }()
	receiver := httptest.NewServer(http.HandlerFunc(receive)) // on loopback
	defer receiver.Close()
	tracer := s.provider.Tracer("monitored")

	pace := time.NewTicker(cfg.pace)
	defer pace.Stop()
	for n := 0; ; n++ {
		id, story := fmt.Sprintf("webhook-%d", n), stories[n%len(stories)]
		body, err := json.Marshal(webhook.Delivery{
			ID: id, URL: receiver.URL + "/" + story, Event: "order.paid",
		})
		if err != nil {
			return err
		}
		msg := message.NewMessage(watermill.NewUUID(), body)
		msg.Metadata.Set(storyKey, story)
		wmiddleware.SetCorrelationID(id, msg)
		spanned, span := tracer.Start(ctx, "publish "+cfg.queue,
			trace.WithSpanKind(trace.SpanKindProducer))
		s.tracing.Inject(spanned, msg)
		// the broker is away: the next one may be luckier
		if err := publisher.Publish(cfg.queue, msg); err != nil {
			s.logger.Error("Cannot publish", err, watermill.LogFields{"webhook": id})
			span.RecordError(err)
		}
		span.End()
		select {
		case <-ctx.Done():
			return nil
		case <-pace.C:
		}
	}
}

// receive answers a webhook by its story.
func receive(w http.ResponseWriter, req *http.Request) {
	attempt, _ := strconv.Atoi(req.Header.Get(webhook.AttemptHeader))
	switch story := strings.TrimPrefix(req.URL.Path, "/"); {
	case story == "gone":
		w.WriteHeader(http.StatusGone)
	case story == "hopeless", story == "flaky" && attempt == 1:
		w.WriteHeader(http.StatusInternalServerError)
	case story == "outage" && attempt < 4:
		w.WriteHeader(http.StatusServiceUnavailable)
	case story == "limited" && attempt == 1:
		w.Header().Set("Retry-After", "2")
		w.WriteHeader(http.StatusTooManyRequests)
	case story == "dropped" && attempt == 1:
		if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
			_ = conn.Close()
		}
	}
}
