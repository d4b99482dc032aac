package topology

import (
	"fmt"
	"strings"

	"github.com/millpond-go/millpond/internal/consumer"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/middleware/header"
)

// routing follows messages through the exchanges and bindings of a plan, as the broker does.
type routing struct {
	plan      Plan
	exchanges map[string]Exchange
	bindings  map[string][]Binding // by the exchange they lead from
	gone      string               // a queue that has vanished, with its bindings
}

func newRouting(p Plan) routing {
	r := routing{plan: p, exchanges: map[string]Exchange{}, bindings: map[string][]Binding{}}
	for _, e := range p.Exchanges {
		r.exchanges[e.Name] = e
	}
	for _, b := range p.Bindings {
		r.bindings[b.Exchange] = append(r.bindings[b.Exchange], b)
	}
	return r
}

// reached are the queues that a message reaches, and the exchanges that it passes, including
// exchanges that the plan does not declare.
type reached struct {
	queues, exchanges map[string]bool
	unknown           []string // exchanges that the plan does not declare
}

// missingText names the exchanges that the plan does not declare.
func (r reached) missingText() string {
	if len(r.unknown) == 0 {
		return ""
	}
	return fmt.Sprintf(" (the plan does not declare exchange %q)", r.unknown)
}

// reach returns where a message goes from an exchange.
func (r routing) reach(exchange, key string, headers map[string]string) reached {
	to := reached{queues: map[string]bool{}, exchanges: map[string]bool{}}
	words := []string{}
	if key != "" {
		words = strings.Split(key, ".")
	}
	r.follow(exchange, key, words, headers, &to)
	return to
}

func (r routing) follow(
	exchange, key string, words []string, headers map[string]string, to *reached,
) {
	if exchange == "" {
		to.queues[key] = true
		return
	}
	if to.exchanges[exchange] {
		return
	}
	to.exchanges[exchange] = true
	e, declared := r.exchanges[exchange]
	if !declared {
		to.unknown = append(to.unknown, exchange)
		return
	}
	matched := false
	for _, b := range r.bindings[exchange] {
		if !b.matches(e.routesAs(), key, words, headers) || b.Queue != "" && b.Queue == r.gone {
			continue
		}
		matched = true
		if b.ToExchange != "" {
			r.follow(b.ToExchange, key, words, headers, to)
		} else {
			to.queues[b.Queue] = true
		}
	}
	// The alternate exchange gets messages that match no binding of this exchange (F27).
	if alternate, _ := e.Arguments["alternate-exchange"].(string); alternate != "" && !matched {
		r.follow(alternate, key, words, headers, to)
	}
}

// matches reports whether a binding at an exchange of the kind takes a message.
func (b Binding) matches(kind, key string, words []string, headers map[string]string) bool {
	switch kind {
	case "fanout":
		return true
	case "direct":
		return b.RoutingKey == key
	case "topic":
		if b.RoutingKey == "" {
			return len(words) == 0
		}
		return topicMatches(strings.Split(b.RoutingKey, "."), words)
	case "headers":
		if b.Header == "" || strings.HasPrefix(b.Header, "x-") { // takes all (F8)
			return true
		}
		value, set := headers[b.Header]
		return set && value == b.Value
	}
	return false
}

// topicMatches is AMQP's rule: * stands for one word, # for any number of words.
func topicMatches(pattern, words []string) bool {
	for len(pattern) > 0 && pattern[0] != "#" {
		if len(words) == 0 || pattern[0] != "*" && pattern[0] != words[0] {
			return false
		}
		pattern, words = pattern[1:], words[1:]
	}
	if len(pattern) == 0 {
		return len(words) == 0
	}
	rest := pattern[1:]
	for n := range len(words) + 1 {
		if topicMatches(rest, words[n:]) {
			return true
		}
	}
	return false
}

// headers are the headers by which exchanges of the plan route a message that waits on a route.
// via is the exchange of the user that the message passes, or empty.
func (r routing) headers(route Route, via string) map[string]string {
	headers := map[string]string{header.Queue: r.plan.Queue}
	for key, value := range route.Headers {
		if text, ok := value.(string); ok {
			headers[key] = text
		}
	}
	if via != "" {
		headers[keys.Via] = consumer.ViaHeader(r.plan.Queue, via)
	}
	return headers
}
