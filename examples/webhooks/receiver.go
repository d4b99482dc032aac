package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/millpond-go/millpond/examples/internal/webhook"
	"github.com/millpond-go/millpond/middleware/header"
)

// receiver is a server on loopback. It answers as planned and enters every request in the ledger.
type receiver struct {
	ledger *ledger
	// seen is called with the line of each request.
	seen   func(line string)
	server *http.Server
	url    string
	ended  chan error
}

func startReceiver(l *ledger, seen func(line string)) (*receiver, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &receiver{
		ledger: l, seen: seen, url: "http://" + listener.Addr().String() + "/hooks/",
		ended: make(chan error, 1),
	}
	r.server = &http.Server{Handler: r}
	go func() { r.ended <- r.server.Serve(listener) }()
	return r, nil
}

// ServeHTTP enters the request before it answers, so the ledger knows all that the sender knows.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	at := time.Now()
	// The server notices that a sender gives up only after it has read the body.
	_, _ = io.Copy(io.Discard, req.Body)
	attempt, _ := strconv.Atoi(req.Header.Get(webhook.AttemptHeader))
	sent, err := time.Parse(time.RFC3339Nano, req.Header.Get(webhook.SentHeader))
	if err != nil {
		sent = at
	}
	a, line := r.ledger.request(req.Header.Get(webhook.IDHeader), attempt, sent, at)
	r.seen(line)

	switch {
	case a.hang:
		<-req.Context().Done()
	case a.status == 0:
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_ = conn.Close()
		}
	default:
		setRetryAfter(w.Header(), a, at)
		w.WriteHeader(a.status)
	}
}

func setRetryAfter(header http.Header, a answer, now time.Time) {
	now = now.UTC()
	switch {
	case a.date:
		header.Set("Date", now.Format(http.TimeFormat))
		header.Set("Retry-After", now.Add(a.after).Format(http.TimeFormat))
	case a.after > 0:
		header.Set("Retry-After", strconv.Itoa(int(a.after/time.Second)))
	}
}

func (r *receiver) close() error {
	err := r.server.Close()
	if ended := <-r.ended; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}

// answer is the receiver's answer to one request.
type answer struct {
	// status is 0 if it does not answer.
	status int
	// after is its Retry-After, sent as a date if date is set.
	after time.Duration
	date  bool
	// hang keeps the sender waiting until it gives up. Without it, no answer means a dropped
	// connection.
	hang bool
}

var (
	accepted = answer{status: http.StatusOK}
	dropped  = answer{}
	hangs    = answer{hang: true}
)

func (a answer) String() string {
	switch {
	case a.hang:
		return "no answer"
	case a.status == 0:
		return "dropped"
	case a.date:
		return fmt.Sprintf("%d in %v (date)", a.status, a.after)
	case a.after > 0:
		return fmt.Sprintf("%d in %v", a.status, a.after)
	}
	return fmt.Sprint(a.status)
}

// wait returns the delay that must follow if this answer is the given failure of its delivery,
// counted from 1.
func (a answer) wait(failure int) time.Duration {
	p := webhook.Policy
	if a.status == 0 {
		p = webhook.NetworkPolicy
	}
	return max(p[failure-1], a.after)
}

// script has the answers to one delivery, attempt by attempt. The last one is repeated.
type script []answer

// at returns the answer to an attempt, counted from 1.
func (s script) at(attempt int) answer { return s[min(attempt, len(s))-1] }

// end returns the attempts that the delivery must take, and the reason for which it must be
// dead-lettered: "" if it must be delivered.
func (s script) end() (attempts int, dead header.Reason) {
	for attempt := 1; ; attempt++ {
		switch status := s.at(attempt).status; {
		case status == http.StatusOK:
			return attempt, ""
		case status == http.StatusBadRequest, status == http.StatusGone:
			return attempt, header.ReasonPermanent
		case attempt == webhook.MaxAttempts:
			return attempt, header.ReasonExhausted
		}
	}
}

// planned is one delivery of the plan.
type planned struct {
	id     string
	script script
}

// deal makes the plan. Of twenty deliveries twelve have a story, and the others go well. The same
// seed makes the same plan.
func deal(deliveries int, seed uint64) []planned {
	rng := rand.New(rand.NewPCG(seed, 0))
	plan := make([]planned, deliveries)
	for i := range plan {
		plan[i].script = script{accepted}
		if story := i % 20; story < len(stories) {
			plan[i].script = stories[story](rng)
		}
	}
	rng.Shuffle(len(plan), func(i, j int) { plan[i], plan[j] = plan[j], plan[i] })
	for i := range plan {
		plan[i].id = fmt.Sprintf("webhook-%03d", i+1)
	}
	return plan
}

var stories = []func(*rand.Rand) script{
	func(*rand.Rand) script { return script{{status: http.StatusBadRequest}} },
	func(*rand.Rand) script { return script{{status: http.StatusGone}} },
	func(*rand.Rand) script { return script{{status: http.StatusInternalServerError}, accepted} },
	func(r *rand.Rand) script { return outage(2 + r.IntN(2)) },
	func(*rand.Rand) script { return outage(webhook.MaxAttempts - 1) },
	func(r *rand.Rand) script { return script{limited(r, false), accepted} },
	func(r *rand.Rand) script { return script{limited(r, true), accepted} },
	func(*rand.Rand) script { return script{dropped, accepted} },
	func(*rand.Rand) script { return script{dropped, dropped, accepted} },
	func(*rand.Rand) script { return script{hangs, accepted} },
	func(r *rand.Rand) script { // a bad day
		return script{
			dropped, limited(r, r.IntN(2) == 0), {status: http.StatusInternalServerError}, accepted,
		}
	},
	func(r *rand.Rand) script { // hopeless
		return script{
			{status: http.StatusInternalServerError},
			[]answer{{status: http.StatusServiceUnavailable}, dropped}[r.IntN(2)],
		}
	},
}

// outage answers 503 for a while.
func outage(attempts int) script {
	var s script
	for range attempts {
		s = append(s, answer{status: http.StatusServiceUnavailable})
	}
	return append(s, accepted)
}

// limited answers 429, with a delay that has a wait queue.
func limited(r *rand.Rand, date bool) answer {
	return answer{
		status: http.StatusTooManyRequests,
		after:  webhook.RetryAfters[r.IntN(len(webhook.RetryAfters))], date: date,
	}
}
