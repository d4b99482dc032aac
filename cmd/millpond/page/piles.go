package page

import (
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology/operate"
)

// The bounds of the memory for letters, over all looks. Beyond them the oldest looks lose payloads
// and lists, never their stubs, which are counted.
const (
	// maxDetails letters are in lists.
	maxDetails = 100_000
	// maxContents bytes of headers and payloads are kept, of each letter at most maxBody.
	maxContents = 16 << 20
	maxBody     = 64 << 10
	// maxError bytes of an error are in lists; filters see no more.
	maxError = 200
	// maxCauses causes are told apart in one look.
	maxCauses = 1000
	// maxLooks filters are kept whose looks have chosen letters, beside the looks at all letters.
	maxLooks = 5
)

// pile is the result of a look at a dead-letter queue. It is not changed once the look has ended.
type pile struct {
	queue    string // the dead-letter queue
	key      string // the filter of the look
	at       time.Time
	stubs    []stub                 // of all letters that the look has chosen
	details  []detail               // of the first stubs
	contents map[int]operate.Letter // by position
	bytes    int
	causes   index[cause]
	origins  index[origin]
}

// stub is a letter as groups need it. A million of them take 16 MB.
type stub struct {
	dead     int64 // in milliseconds; 0 if it is not known
	position int32
	cause    uint16 // a number of the pile's causes
	from     uint16 // a number of its origins
}

// cause is a fingerprint.
type cause struct{ id, text string }

// index numbers values, at most maxCauses of them and one for all others.
type index[V comparable] struct {
	numbers map[V]uint16
	values  []V
}

// number returns the number of a value, or of others if there are too many.
func (x *index[V]) number(value, others V) uint16 {
	n, known := x.numbers[value]
	if !known && len(x.values) >= maxCauses {
		value = others
		n, known = x.numbers[value]
	}
	if known {
		return n
	}
	if x.numbers == nil {
		x.numbers = map[V]uint16{}
	}
	n = uint16(len(x.values))
	x.numbers[value], x.values = n, append(x.values, value)
	return n
}

// origin is shared by the letters that have the same.
type origin struct{ queue, handler, reason string }

// detail is a letter in a list.
type detail struct {
	id, err           string
	attempts, replays int32
	size              int32
}

// add adds a letter of a look. room says how many details and bytes may still be kept.
func (p *pile) add(l operate.Letter, room *room) {
	id, text := operate.Fingerprint(l)
	s := stub{
		position: int32(l.Position),
		cause:    p.causes.number(cause{id, text}, cause{"", "(others)"}),
		from: p.origins.number(origin{
			cutBytes(l.Queue, 255), cutBytes(l.Handler, 255), cutBytes(string(l.Reason), 255),
		}, origin{"(others)", "(others)", ""}),
	}
	if year := l.DeadAt.UTC().Year(); year >= 1970 && year < 10_000 { // any publisher may write others
		s.dead = l.DeadAt.UnixMilli()
	}
	if room.details > 0 {
		room.details--
		p.details = append(p.details, detail{
			id: l.ID, err: cutBytes(l.Error, maxError),
			attempts: int32(l.Attempts), replays: int32(l.Replays), size: int32(len(l.Delivery.Body)),
		})
		if n := weigh(l); n <= room.bytes {
			room.bytes -= n
			p.bytes += n
			p.contents[l.Position] = light(l)
		}
	}
	p.stubs = append(p.stubs, s)
}

// cutBytes cuts a text, and no character in two.
func cutBytes(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most-3], "") + "…"
}

// weigh returns about how many bytes of memory a letter takes once light.
func weigh(l operate.Letter) int {
	n := 1024 + min(len(l.Delivery.Body), maxBody)
	for key, value := range l.Delivery.Headers {
		n += 128 + len(key) + 2*len(operate.HeaderText(value))
	}
	for _, e := range l.History {
		n += 256 + len(e.Error)
	}
	return n
}

// light returns a letter with the beginning of a long payload. Its size is in the detail.
func light(l operate.Letter) operate.Letter {
	l.Delivery.Body = slices.Clone(l.Delivery.Body[:min(len(l.Delivery.Body), maxBody)])
	return l
}

// room is the memory that is left.
type room struct{ details, bytes int }

// letterStore keeps the results of looks, within its bounds.
type letterStore struct {
	mu    sync.Mutex
	piles []*pile // the oldest first
}

// kept is a letter, whose payload may be cut, with the size of the payload.
type kept struct {
	letter operate.Letter
	at     time.Time
	size   int
}

// begin makes room for a look. The last one with the same key keeps its counts until the end.
func (s *letterStore) begin(queue, key string) (*pile, *room) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, p := range s.piles {
		if p.queue == queue && p.key == key {
			s.piles[i] = p.within(&room{})
		}
	}
	p := &pile{queue: queue, key: key, contents: map[int]operate.Letter{}}
	return p, &room{maxDetails, maxContents}
}

// end keeps a look in place of the last one with the same key. Others lose what does not fit, the
// oldest first. A filter is forgotten for all queues at once, so that no sum lacks some of them.
func (s *letterStore) end(p *pile) {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := &room{maxDetails - len(p.details), maxContents - p.bytes}
	kept, filters := []*pile{p}, map[string]bool{p.key: true, "": true}
	for _, o := range slices.Backward(s.piles) {
		if filters[o.key] || len(filters) <= maxLooks {
			filters[o.key] = true
			if o.queue != p.queue || o.key != p.key {
				kept = append(kept, o.within(left))
			}
		}
	}
	slices.Reverse(kept)
	s.piles = kept
}

// within returns a look without the payloads and the list for which no room is left.
func (p *pile) within(left *room) *pile {
	o := *p
	left.bytes, left.details = left.bytes-p.bytes, left.details-len(p.details)
	if left.bytes < 0 || left.details < 0 {
		o.contents, o.bytes = nil, 0
	}
	if left.details < 0 {
		o.details = nil
	}
	return &o
}

// find returns the newest look at a queue with one of the keys.
func (s *letterStore) find(queue string, keys ...string) *pile {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range slices.Backward(s.piles) {
		if p.queue == queue && slices.Contains(keys, p.key) {
			return p
		}
	}
	return nil
}

// letter returns a letter with its payload, which may be cut, if it is kept.
func (s *letterStore) letter(queue, id string, position int) (kept, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range slices.Backward(s.piles) {
		if p.queue != queue {
			continue
		}
		if l, ok := p.contents[position]; ok && l.ID == id {
			i := slices.IndexFunc(p.stubs, func(s stub) bool { return int(s.position) == position })
			return kept{l, p.at, int(p.details[i].size)}, true
		}
	}
	return kept{}, false
}

// chosen calls do with the letters of a look that meet the filter, by position, and with their
// details, if they are kept. left counts the letters that may meet it and whose details are not
// kept. No list is made, because a look may have a million letters.
func (p *pile) chosen(
	f operate.Filter, do func(*stub, *detail),
) (left int, err error) {
	detailed := operate.Filter{IDs: f.IDs, Error: f.Error}
	chooses, err := detailed.Matcher()
	if err != nil {
		return 0, err
	}
	causes, origins := p.accepted(f)
	since, until := int64(math.MinInt64), int64(math.MaxInt64) // a letter without a time is at 0
	if !f.Since.IsZero() {
		since = max(f.Since.UnixMilli(), 1)
	}
	if !f.Until.IsZero() {
		since, until = max(since, 1), f.Until.UnixMilli()
	}
	all := detailed.IsZero()
	for i := range p.stubs {
		s := &p.stubs[i]
		if !causes[s.cause] || !origins[s.from] || s.dead < since || s.dead >= until {
			continue
		}
		var d *detail
		if i < len(p.details) {
			d = &p.details[i]
			if !all && !chooses(operate.Letter{ID: d.id, Error: d.err}) {
				continue
			}
		} else if left++; !all {
			continue
		}
		do(s, d)
	}
	return left, nil
}

// accepted reports which causes and origins meet the filter, by their numbers.
func (p *pile) accepted(f operate.Filter) (causes, origins []bool) {
	groups := strings.Split(f.Group, ",")
	for _, c := range p.causes.values {
		causes = append(causes, f.Group == "" || slices.Contains(groups, c.id))
	}
	for _, from := range p.origins.values {
		origins = append(origins, (len(f.Queues) == 0 || slices.Contains(f.Queues, from.queue)) &&
			(f.Reason == "" || f.Reason == header.Reason(from.reason)) &&
			(f.Handler == "" || f.Handler == from.handler))
	}
	return causes, origins
}

// tally counts letters of a cause.
type tally struct {
	first, last int64 // as stub.dead
	from        []int // by the numbers of their origins
	times       [bins]int
}

// tallies counts the letters of a look that meet the filter, by the numbers of their causes, in
// columns of the time from first to last. each gets the details that are kept.
func (p *pile) tallies(
	f operate.Filter, first, last int64, each func(*stub, *detail),
) ([]*tally, error) {
	all := make([]*tally, len(p.causes.values))
	_, err := p.chosen(f, func(s *stub, d *detail) {
		t := all[s.cause]
		if t == nil {
			t = &tally{from: make([]int, len(p.origins.values)), first: math.MaxInt64}
			all[s.cause] = t
		}
		t.from[s.from]++
		if s.dead != 0 {
			t.first, t.last = min(t.first, s.dead), max(t.last, s.dead)
			t.times[min(int((s.dead-first)*bins/max(last-first, 1)), bins-1)]++
		}
		if d != nil {
			each(s, d)
		}
	})
	return all, err
}
