package history

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Prometheus is a server that has the metrics of RabbitMQ's plugin, or millpond's own.
type Prometheus struct {
	url    *url.URL
	client http.Client
}

// NewPrometheus reads the URL of a server. The error quotes no password.
func NewPrometheus(text string) (*Prometheus, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("the URL of Prometheus must be as http://host:9090")
	}
	return &Prometheus{url: u, client: http.Client{Timeout: 10 * time.Second}}, nil
}

// Names are those of a queue in the metrics.
type Names struct {
	Vhost, Queue string
	Dead         []string // its dead-letter queues
}

// Chart returns the time of a queue until now.
func (p *Prometheus) Chart(
	ctx context.Context, names Names, now time.Time, long time.Duration,
) (c Chart, err error) {
	step := long / Points
	for at := now.Add(-long); !at.After(now); at = at.Add(step) {
		c.Times = append(c.Times, at.Unix())
	}
	dead := make([]string, len(names.Dead))
	for i, name := range names.Dead {
		dead[i] = regexp.QuoteMeta(name)
	}
	replace := strings.NewReplacer(
		"VHOST", strconv.Quote(names.Vhost), "QUEUE", strconv.Quote(names.Queue),
		"DEAD", strconv.Quote(strings.Join(dead, "|")),
		"TIME", fmt.Sprintf("%ds", int(max(2*step, 5*time.Minute).Seconds())),
	)
	c.Columns = map[string][]*float64{}
	for name, query := range queries {
		found, err := p.ask(ctx, replace.Replace(query), c.Times, step)
		if err != nil {
			return Chart{}, err
		}
		for _, at := range c.Times {
			c.Columns[name] = append(c.Columns[name], found[at])
		}
	}
	return c, nil
}

// queries are those of the columns: of the metrics of RabbitMQ's plugin, or of millpond.
var queries = map[string]string{
	"dead": "sum(max by (queue) (rabbitmq_detailed_queue_messages{vhost=VHOST,queue=~DEAD})) or " +
		"sum(max by (name) (millpond_queue_messages_ready{role=\"dead\",name=~DEAD}))",
	"ready": "max(rabbitmq_detailed_queue_messages_ready{vhost=VHOST,queue=QUEUE}) or " +
		"max(millpond_queue_messages_ready{role=\"main\",name=QUEUE})",
	"in": "sum(rate(rabbitmq_detailed_queue_messages_published_total" +
		"{queue_vhost=VHOST,queue=QUEUE}[TIME])) or " +
		"sum(rate(rabbitmq_detailed_queue_exchange_messages_published_total" + // of 4.3
		"{queue_vhost=VHOST,queue=QUEUE}[TIME])) or " +
		// The rate of attempts plus the growth of the queue.
		"clamp_min(sum(rate(millpond_processing_seconds_count{queue=QUEUE}[TIME])) + " +
		"max(deriv(millpond_queue_messages_ready{role=\"main\",name=QUEUE}[TIME])), 0)",
	"out":     "sum(rate(millpond_processing_seconds_count{queue=QUEUE}[TIME]))",
	"retries": "sum(rate(millpond_retries_total{queue=QUEUE}[TIME]))",
}

// maxAnswer bounds an answer in bytes: 241 points need 10 kB.
const maxAnswer = 1 << 20

// ask returns the values of a query, which gives one series at most, by time.
func (p *Prometheus) ask(
	ctx context.Context, query string, times []int64, step time.Duration,
) (map[int64]*float64, error) {
	at := p.url.JoinPath("api/v1/query_range")
	at.RawQuery = url.Values{
		"query": {query}, "step": {strconv.Itoa(int(step.Seconds()))},
		"start": {strconv.FormatInt(times[0], 10)},
		"end":   {strconv.FormatInt(times[len(times)-1], 10)},
	}.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	response, err := p.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("Prometheus does not answer: %w", errors.Unwrap(err))
	}
	defer func() { _ = response.Body.Close() }()
	var answer struct {
		Status, Error string
		Data          struct{ Result []struct{ Values [][2]any } }
	}
	err = json.NewDecoder(io.LimitReader(response.Body, maxAnswer)).Decode(&answer)
	if err != nil || answer.Status != "success" {
		return nil, fmt.Errorf("Prometheus answers %s: %.200s", response.Status, answer.Error)
	}
	values := map[int64]*float64{}
	for _, series := range answer.Data.Result {
		for _, pair := range series.Values {
			seconds, _ := pair[0].(float64)
			text, _ := pair[1].(string)
			value, err := strconv.ParseFloat(text, 64)
			if err == nil && !math.IsNaN(value) && !math.IsInf(value, 0) {
				values[int64(seconds)] = &value
			}
		}
	}
	return values, nil
}
