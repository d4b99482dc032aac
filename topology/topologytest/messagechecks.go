package topologytest

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/experiment"
	"github.com/millpond-go/millpond/internal/testing/passage"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// brokerChecks run on services of the suite.
var brokerChecks = []check{
	{"EachDelayIsKept", delaysAreKept},
	{"DelaysThatThePolicyDoesNotListAreKept", unlistedDelaysAreKept},
	{"SnoozedMessagesComeBackInSeconds", snoozesAreShort},
	{"DelayedMessagesArriveWhenDue", delayedPublishing},
	{"AttemptsAreCountedUntilTheDeadLetter", attemptsAreCounted},
	{"MessagesArriveAsTheyWereSent", messagesAreKept},
	{"MessagesReturnToTheirOwnQueue", ownQueueOnly},
	{"AHundredAtOnceArriveOnce", hundredArriveOnce},
	{"DeclaringTwiceIsNoConflict", declaringTwice},
	{"AnotherPolicyForAQueueIsKept", anotherPolicy},
	{"AMessageWhoseQueueIsDeletedIsKept", queueIsDeleted},
	{"PermissionsOfThePlanSuffice", permissionsSuffice},
}

// endChecks run after them.
var endChecks = []check{{"NothingIsLeft", nothingIsLeft}}

func backoffList(delays []time.Duration) backoff.Policy { return backoff.List(delays) }

const (
	// early is how much too soon a message may come by the clock of the client.
	early = 5 * time.Millisecond
	// late is how much too late a message may come that its process has kept in order.
	late = 10 * time.Second
)

// requireWait fails if a message came back too early, or has waited elsewhere than in the wait step
// of its delay. The broker notes where a message waits, so a busy machine fails no check.
func (s *suite) requireWait(
	tr *trial, p topology.Plan, first, second call, asked time.Duration,
) {
	gap, due := second.at.Sub(first.at), planned(p, asked)
	if gap < asked-early {
		tr.Errorf("a message that has to wait for %v came back after %v: too early. Its route must lead "+
			"to wait queues whose x-message-ttl is as long, and to no others, also of earlier plans",
			asked, gap)
	}
	queues := passage.Queues(&second.raw)
	if p.Line != "" && len(queues) == 0 {
		if gap > asked+late {
			tr.Errorf("a message that has to wait for %v came back after %v: too late", asked, gap)
		}
		return
	}
	waited, err := passage.Waited(p, &second.raw)
	rounds := s.rounds.Of(idOf(second.raw))
	switch {
	case err != nil:
		tr.Errorf("a message that has to wait for %v has passed the queues %q: %v. Let its route lead "+
			"to the wait queues of the plan, and let no binding of an earlier plan lead elsewhere",
			asked, queues, err)
	case inRounds(p, asked) && waited <= due:
	case rounds > 0:
		tr.Errorf("a message that has to wait for %v has waited in %d rounds in place of one, at last "+
			"in the queues %q: its route must lead to the wait step of that delay",
			asked, rounds+1, queues)
	case waited < asked || waited > due:
		tr.Errorf("a message that has to wait for %v, and by the plan waits for %v, has waited for %v, "+
			"in the queues %q: its route must lead to the wait step of that delay",
			asked, due, waited, queues)
	}
}

func delaysAreKept(tr *trial, s *suite) {
	msg, id := s.text(tr, "1")
	s.send(tr, s.a, msg, fails(len(s.delays()), errClosed))
	calls := s.awaitCalls(tr, s.a, id, planned(s.a.plan, s.delays()...))
	for i, d := range s.delays() {
		s.requireWait(tr, s.a.plan, calls[i], calls[i+1], d)
	}
}

func unlistedDelaysAreKept(tr *trial, s *suite) {
	type sent struct {
		id         string
		asked, due time.Duration
	}
	var all []sent
	for i, asked := range []time.Duration{700 * time.Millisecond, 2500 * time.Millisecond} {
		due := planned(s.a.plan, asked)
		if due > s.Patience {
			tr.Logf("not tried: by the plan a message that has to wait for %v waits for %v", asked, due)
			continue
		}
		msg, id := s.text(tr, fmt.Sprint(i))
		s.send(tr, s.a, msg, fails(1, middleware.RetryAfter(errClosed, asked)))
		all = append(all, sent{id, asked, due})
	}
	for _, m := range all {
		calls := s.awaitCalls(tr, s.a, m.id, m.due)
		s.requireWait(tr, s.a.plan, calls[0], calls[1], m.asked)
		if calls[1].attempt != 2 {
			tr.Errorf("a message that waited %v is at attempt %d in place of 2: waiting in rounds "+
				"must not cost attempts", m.asked, calls[1].attempt)
		}
	}
}

func snoozesAreShort(tr *trial, s *suite) {
	const asked = time.Second
	msg, id := s.text(tr, "1")
	s.send(tr, s.a, msg, fails(1, middleware.Snooze(errClosed, asked)))
	calls := s.awaitCalls(tr, s.a, id, planned(s.a.plan, asked))
	s.requireWait(tr, s.a.plan, calls[0], calls[1], asked)
	if calls[1].attempt != 1 {
		tr.Errorf("a snoozed message is at attempt %d in place of 1", calls[1].attempt)
	}
}

func delayedPublishing(tr *trial, s *suite) {
	const asked = 300 * time.Millisecond
	pub, err := s.main.client.NewPublisher(s.queueConfig(s.URL),
		topology.WithDelays(s.delays()...))
	tr.Must(err, "make a Publisher")
	tr.Cleanup(pub.Close)
	_, later := s.text(tr, "later")
	_, soon := s.text(tr, "soon")
	s.a.expect(later, fails(0, nil))
	s.a.expect(soon, fails(0, nil))
	began := time.Now()
	tr.Must(pub.Publish(s.a.queue, delayed(later, asked), message.NewMessage(soon, []byte(soon))),
		"publish a message with a delay")
	s.awaitCalls(tr, s.a, soon, 0)
	came := s.awaitCalls(tr, s.a, later, planned(s.a.plan, asked))[0]
	s.requireWait(tr, s.a.plan, call{at: began}, came, asked)
	if came.attempt != 1 {
		tr.Errorf("a message that was published with a delay is at attempt %d in place of 1",
			came.attempt)
	}
	if came.raw.Headers["kind"] != "reminder" || came.raw.DeliveryMode != amqp.Persistent {
		tr.Errorf("a message that was published with a delay has the headers %v and the delivery mode "+
			"%d: its metadata are lost, or it is not persistent", came.raw.Headers, came.raw.DeliveryMode)
	}
}

// delayed returns a message whose body is its id.
func delayed(id string, by time.Duration) *message.Message {
	msg := message.NewMessage(id, []byte(id))
	msg.Metadata.Set("kind", "reminder")
	msg.SetContext(delay.WithContext(context.Background(), delay.For(by)))
	return msg
}

func attemptsAreCounted(tr *trial, s *suite) {
	msg, id := s.text(tr, "1")
	attempts := len(s.delays()) + 1
	s.send(tr, s.a, msg, script{attempts, func(int) error { return errClosed }})
	for i, c := range s.awaitCalls(tr, s.a, id, planned(s.a.plan, s.delays()...)) {
		// A queue that holds rejected messages itself writes no history.
		told := len(c.state.History) == i || s.a.plan.RejectMin > 0
		if c.attempt != i+1 || c.state.Failures != i || !told {
			tr.Errorf("call %d of the handler is for attempt %d, after %d failures and with a history of "+
				"%d: the count is in the headers, which must come back", i+1, c.attempt, c.state.Failures,
				len(c.state.History))
		}
	}
	letter := s.awaitLetter(tr, id, "dead-letter queue")
	for key, want := range map[string]string{
		header.DeadReason: string(header.ReasonExhausted), header.DeadFailures: fmt.Sprint(attempts),
		header.DeadQueue: s.a.queue, header.DeadError: errClosed.Error(),
	} {
		if got := fmt.Sprint(letter.Headers[key]); got != want {
			tr.Errorf("the dead letter has the header %s: %q in place of %q", key, got, want)
		}
	}
	if string(letter.Body) != string(msg.Body) {
		tr.Errorf("the dead letter has the body %q in place of %q", letter.Body, msg.Body)
	}
}

func messagesAreKept(tr *trial, s *suite) {
	_, id := s.text(tr, "1")
	sent := experiment.Typed(id)
	s.send(tr, s.a, sent, script{len(s.delays()) + 1, func(int) error { return errClosed }})
	for i, c := range s.awaitCalls(tr, s.a, id, planned(s.a.plan, s.delays()...)) {
		for _, difference := range experiment.Differences(sent, c.raw) {
			tr.Errorf("the message at attempt %d has %s", i+1, difference)
		}
	}
	letter := s.awaitLetter(tr, id, "dead-letter queue")
	for _, difference := range experiment.Differences(sent, letter) {
		tr.Errorf("the dead letter has %s", difference)
	}
}
