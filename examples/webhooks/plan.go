package main

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/millpond-go/millpond/examples/internal/webhook"
	"github.com/millpond-go/millpond/middleware/header"
)

// answer is what the receiver does with one request.
type answer struct {
	// status it answers with; 0 if it does not answer.
	status int
	// after is its Retry-After, sent as a date if date is set.
	after time.Duration
	date  bool
	// hang keeps the sender waiting until it gives up; otherwise no answer means
	// a connection that is dropped.
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

// wait is the delay that has to follow when this answer is the given failure of
// its delivery, counted from 1.
func (a answer) wait(failure int) time.Duration {
	p := webhook.Policy
	if a.status == 0 {
		p = webhook.NetworkPolicy
	}
	return max(p[failure-1], a.after)
}

// script is what the receiver answers to one delivery, attempt by attempt. The
// last answer is for all further attempts.
type script []answer

// at returns the answer to an attempt, counted from 1.
func (s script) at(attempt int) answer { return s[min(attempt, len(s))-1] }

// end is what has to become of the delivery: the attempts it takes, and why it is
// dead-lettered; "" if it is delivered.
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

// deal makes the plan: of each twenty deliveries twelve have a story, and the
// others go well. The same seed makes the same plan.
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
		return script{dropped, limited(r, r.IntN(2) == 0), {status: http.StatusInternalServerError},
			accepted}
	},
	func(r *rand.Rand) script { // hopeless
		return script{{status: http.StatusInternalServerError},
			[]answer{{status: http.StatusServiceUnavailable}, dropped}[r.IntN(2)]}
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

// limited answers 429, with a delay among those that have a wait queue.
func limited(r *rand.Rand, date bool) answer {
	return answer{status: http.StatusTooManyRequests,
		after: webhook.RetryAfters[r.IntN(len(webhook.RetryAfters))], date: date}
}
