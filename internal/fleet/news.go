package fleet

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/seam"
	"github.com/millpond-go/millpond/middleware/header"
)

// hear takes news.
func (s *session) hear(d amqp.Delivery) error {
	if d.AppId == s.Instance || len(d.Body) > longestBody {
		return nil
	}
	if d.Type != Hello && !s.believes(d) {
		return s.refuse(d)
	}
	if d.Type == keyNews {
		var news seam.KeyNews
		if json.Unmarshal(d.Body, &news) == nil {
			s.Brake.HearKey(news)
		}
		return nil
	}
	state, ok := Read(s.name, d)
	if !ok {
		return nil
	}
	toMe := d.Exchange == "" // the sender knows the queue: it has read the question of this process
	switch d.Type {
	case Hello:
		if isPart(s.name, d.ReplyTo) {
			return s.answer(d.ReplyTo, state)
		}
	case Told:
		if toMe {
			s.hearTold(d.Body, state)
		}
	case Stopped:
		return s.hearStopped(d.ReplyTo, state, toMe)
	case Rate:
		if len(s.rates) < mostMembers {
			s.rates[d.AppId] = state.Rate
		}
	case Started:
		s.sure = true
		if len(s.held) == 0 {
			s.merge(&state)
			s.Brake.Set(state)
		}
	case Start:
		if len(s.held) > 0 {
			return s.start(state.By, "started by hand")
		}
	case Bye:
		s.others += s.rates[d.AppId]
		delete(s.rates, d.AppId)
	}
	return nil
}

// hearStopped takes the news that the brake is stopped. The question for the token goes to replyTo.
func (s *session) hearStopped(replyTo string, state header.BrakeState, toMe bool) error {
	switch {
	case len(s.held) > 0: // the other one has lost the token and does not know it yet
	case toMe:
		s.askPause = beat
		s.hasToken(time.Now())
		if !s.Brake.Stopped() {
			s.count(s.Brake.Rate())
		}
		s.merge(&state)
		s.Brake.Set(state)
		s.known()
	case (replyTo == "" || isPart(s.name, replyTo)) && s.mustAsk(state) && s.mayAsk(replyTo):
		return s.publish(Hello, s.Brake.State(), replyTo)
	}
	return nil
}

// isPart reports whether a queue is of a process or an operator, and not of a user or of another
// brake, whose name may begin with this one. A process adds 16 hexadecimal digits to the name,
// an operator rand.Text.
func isPart(name, queue string) bool {
	random, own := strings.CutPrefix(queue, Prefix+name+".")
	return own && (len(random) == 16 || len(random) == 26) && !strings.Contains(random, ".")
}

// believes reports whether the user who has published a message may control the brake. The broker
// has checked the user (F15).
func (s *session) believes(d amqp.Delivery) bool {
	return len(s.ControlUsers) == 0 || slices.Contains(s.ControlUsers, d.UserId)
}

// refuse says once a minute that a message is not believed, and tells its sender.
func (s *session) refuse(d amqp.Delivery) error {
	if now := time.Now(); now.Sub(s.doubt) >= time.Minute {
		s.doubt = now
		s.Logger.Error("A message about the brake is ignored", errIgnored,
			watermill.LogFields{"user": d.UserId, "type": d.Type, "from": d.AppId})
	}
	if !isPart(s.name, d.ReplyTo) || s.manyAnswer() {
		return nil
	}
	return s.publish(Refused, header.BrakeState{}, d.ReplyTo)
}

// mustAsk reports whether a Stopped that any client may have published needs an answer: it says
// something new, or the last proof of a token is old.
func (s *session) mustAsk(state header.BrakeState) bool {
	known := s.Brake.State()
	if !known.Stopped || time.Since(s.proof) >= proofLimit {
		return true
	}
	return state.Prober != "" && (state.Prober != known.Prober || state.Manual != known.Manual ||
		!state.Until.Equal(known.Until))
}

// mostQuestions is how many Stopped a process answers with a question in a second.
const mostQuestions = 8

// mayAsk reports whether this process may answer a Stopped with a question: any client may publish
// it. An earlier version names no queue. Then the question goes to all, and some of them answer it.
// So a process that is stopped asks when its proof is half as old as it may be, and another one
// waits longer after each question that the process with the token has not answered.
func (s *session) mayAsk(queue string) bool {
	now := time.Now()
	if queue == "" {
		if now.Sub(s.askedAll) < s.askPause || s.Brake.Stopped() && now.Sub(s.proof) < silence/2 {
			return false
		}
		s.askedAll, s.askPause = now, min(max(2*s.askPause, beat), silence/2)
		return true
	}
	if now.Sub(s.second) >= time.Second {
		s.second, s.questions = now, 0
	}
	s.questions++
	return s.questions <= mostQuestions
}

// hasToken notes that a process had a token at that time.
func (s *session) hasToken(at time.Time) {
	s.beaten, s.proof, s.asked = at, at, time.Time{}
}

// told is the body of Told.
type told struct {
	header.BrakeState
	Age int64 `json:"age"` // milliseconds since the sender has heard of a token
}

// newsTold makes news of the kind Told.
func newsTold(sender string, state header.BrakeState, age time.Duration) (amqp.Publishing, error) {
	msg, err := News(Told, sender, state)
	if err == nil {
		msg.Body, err = json.Marshal(told{state, age.Milliseconds()})
	}
	return msg, err
}

// hearTold takes the answer of a process that does not probe. It counts for a process that does not
// know of the stop. Otherwise the processes would keep each other stopped without a token.
func (s *session) hearTold(body []byte, state header.BrakeState) {
	var t told
	known := s.Brake.State()
	if json.Unmarshal(body, &t) != nil || known.Stopped || !state.Since.After(known.Since) {
		return
	}
	age := time.Duration(min(max(0, t.Age), silence.Milliseconds())) * time.Millisecond
	s.hasToken(time.Now().Add(-age))
	state.Stopped, state.Prober = true, ""
	s.count(s.Brake.Rate())
	s.merge(&state)
	s.Brake.Set(state)
	s.known()
}

// someAnswers is how many of the processes that do not probe answer a question, on average.
const someAnswers = 8

// manyAnswer reports whether enough other processes answer.
func (s *session) manyAnswer() bool { return rand.Float64()*float64(len(s.rates)) > someAnswers }

// answer tells the state to a process that has asked for it.
func (s *session) answer(queue string, asker header.BrakeState) error {
	state, now := s.Brake.State(), time.Now()
	kind := Stopped
	switch {
	case len(s.held) > 0:
	case s.mine == "" && s.manyAnswer(): // a process that has published the token answers always
		return nil
	case state.Stopped && now.Sub(s.proof) < silence:
		// The broker may not have noticed yet that the process with the token has died.
		kind = Told
	case !state.Stopped && asker.Stopped && state.Since.After(asker.Since) &&
		(s.sure || now.Sub(s.began) >= silence):
		kind = Started
	default:
		return nil
	}
	s.merge(&state)
	if kind == Told {
		msg, err := newsTold(s.Instance, state, now.Sub(s.proof))
		if err != nil {
			return err
		}
		msg.UserId = s.user
		return s.ch.Publish("", queue, false, false, msg)
	}
	return s.publish(kind, state, queue)
}

// count begins to count the members and their rates, and tells the others the rate of this one.
func (s *session) count(rate float64) {
	clear(s.rates)
	s.rates[s.Instance], s.others = rate, 0
	_ = s.publish(Rate, header.BrakeState{Rate: rate}, "")
}

// merge completes a state with the rate of all members. An instance that joined late knows less.
func (s *session) merge(state *header.BrakeState) {
	sum := s.others
	for _, rate := range s.rates {
		sum += rate
	}
	state.Rate, state.Members = min(mostRate, max(state.Rate, sum)), max(state.Members, len(s.rates))
}

// keyNews is the type of the news of one key. Its body is a seam.KeyNews.
const keyNews = "key"

func (s *session) tellKey(news seam.KeyNews) {
	body, err := json.Marshal(news)
	if err == nil {
		_ = s.ch.Publish(Prefix+s.name, "", false, false, amqp.Publishing{
			ContentType: contentType, Type: keyNews, AppId: s.Instance, UserId: s.user, Body: body,
		})
	}
}

// publish tells news to all processes, or to the one with the queue. Its loss harms nothing: the
// process that probes repeats the state.
func (s *session) publish(kind string, state header.BrakeState, queue string) error {
	state.Name = s.name
	msg, err := News(kind, s.Instance, state)
	if err != nil {
		return err
	}
	msg.UserId = s.user
	if kind == Hello || kind == Stopped {
		msg.ReplyTo = s.queue
	}
	exchange := Prefix + s.name
	if queue != "" {
		exchange = ""
	}
	return s.ch.Publish(exchange, queue, false, false, msg)
}
