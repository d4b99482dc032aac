package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"go.opentelemetry.io/otel/trace"

	"github.com/millpond-go/millpond/examples/internal/webhook"
)

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
