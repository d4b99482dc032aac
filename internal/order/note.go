package order

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Kind is the kind of a message in the line. It is the first word of its header header.Line.
type Kind string

// The kinds. The other words are named here.
const (
	Wait    Kind = "wait"    // SEQ ID FIRST: a message that waits
	Block   Kind = "block"   // SEQ ID FIRST: the mark of a dead letter that keeps its key waiting
	Token   Kind = "token"   // EPOCH NAME AHEAD CRASHES ID SET: of a process that leads, or may lead
	Release Kind = "release" // ID: takes the mark with this ID away
	// Ask asks the process that leads for a State. The header header.Key may name a key that must be
	// in it, or the mark of one.
	Ask Kind = "ask"
)

// Note is the header of a message in the line.
type Note struct {
	Kind Kind
	Seq  uint64
	ID   ID
	// First is the ID of the first copy of the message in the line. It is zero, and left out, if
	// that has this ID.
	First ID

	// Of a Token:
	Epoch uint64
	Name  string
	Ahead int // the prefetch of the main queue
	// Crashes is how many processes in a row have ended while they led; Clean for a process that
	// stops leading in peace.
	Crashes int
	// Trying is the message that the process handles alone. In a token without an Epoch it has the
	// Epoch in which the process has led: the process has lost its connection and is back.
	Trying ID
	// Together are the messages of the line that the process handles beside others.
	Together []ID
}

// Clean is one less than no crash: the next process counts one more.
const Clean = -1

// String is the text of the header.
func (n Note) String() string {
	switch n.Kind {
	case Wait, Block:
		text := fmt.Sprintf("%s %d %s", n.Kind, n.Seq, n.ID)
		if n.First != (ID{}) && n.First != n.ID {
			text += " " + n.First.String()
		}
		return text
	case Token:
		text := fmt.Sprintf("%s %d %s %d %d %s", n.Kind, n.Epoch, n.Name, n.Ahead, n.Crashes, n.Trying)
		for i, id := range n.Together {
			text += string(" ,"[min(i, 1)]) + id.String()
		}
		return text
	case Release:
		return fmt.Sprintf("%s %s", n.Kind, n.ID)
	}
	return string(n.Kind)
}

const (
	maxAhead = 65535 // bounds a forged prefetch
	// MaxCrashes is the highest Crashes.
	MaxCrashes = 1000
)

// ParseNote reads a header. A message whose header is missing or cannot be read waits with
// the number 0: it is the first of its key.
func ParseNote(text string) (n Note) {
	words := append(strings.Fields(text), make([]string, 7)...)
	number := func(s string) uint64 {
		v, _ := strconv.ParseUint(s, 10, 64)
		return v
	}
	switch n.Kind = Kind(words[0]); n.Kind {
	case Block:
		n.Seq, n.ID, n.First = number(words[1]), ParseID(words[2]), ParseID(words[3])
	case Token:
		n.Epoch, n.Name, n.Ahead = number(words[1]), words[2], int(min(number(words[3]), maxAhead))
		n.Crashes, _ = strconv.Atoi(words[4])
		n.Crashes = min(max(n.Crashes, Clean), MaxCrashes)
		n.Trying = ParseID(words[5])
		for id := range strings.SplitSeq(words[6], ",") {
			if id != "" && len(n.Together) < MaxTried {
				n.Together = append(n.Together, ParseID(id))
			}
		}
	case Release:
		n.ID = ParseID(words[1])
	case Ask:
	default:
		n.Kind, n.Seq, n.ID, n.First = Wait, number(words[1]), ParseID(words[2]), ParseID(words[3])
	}
	return n
}

func (id ID) String() string { return fmt.Sprintf("%d-%d", id.Epoch, id.N) }

// ParseID reads an ID. It is zero if the text is no ID.
func ParseID(text string) (id ID) {
	epoch, n, _ := strings.Cut(text, "-")
	id.Epoch, _ = strconv.ParseUint(epoch, 10, 64)
	id.N, _ = strconv.ParseUint(n, 10, 64)
	return id
}

// State is the answer of the process that leads.
type State struct {
	Instance string    `json:"instance"`
	Epoch    uint64    `json:"epoch"`
	Since    time.Time `json:"since"`
	// Messages and Bytes are in the line, MaxMessages and MaxBytes its bounds.
	Messages    int `json:"messages"`
	Bytes       int `json:"bytes"`
	MaxMessages int `json:"max_messages"`
	MaxBytes    int `json:"max_bytes"`
	// Keys are those with messages in the line: blocked keys first, then by their messages. At
	// most MaxKeys, and the key that was asked for.
	Keys []KeyState `json:"keys"`
	// Others is how many keys are left out.
	Others int `json:"others,omitempty"`
	// Unbelieved says that a Release of the user who has asked does not count.
	Unbelieved bool `json:"unbelieved,omitempty"`
}

// MaxKeys bounds State.Keys.
const MaxKeys = 1000

// KeyState is a key with messages in the line. Messages without a key have an empty one each.
type KeyState struct {
	Key     string    `json:"key"`
	Waiting int       `json:"waiting"`      // without a mark
	Due     time.Time `json:"due,omitzero"` // of the first, if it waits for its retry
	// Mark is set while a dead letter blocks the key. A Release names it.
	Mark      string    `json:"mark,omitempty"`
	Blocked   time.Time `json:"blocked,omitzero"` // since
	MessageID string    `json:"message_id,omitempty"`
	// Replayed says that a copy of the dead letter, with the ID of the mark, waits behind the mark.
	Replayed bool `json:"replayed,omitempty"`
}

// Sort puts the blocked keys first, then the keys with the most messages, and leaves the rest out,
// but not a key that name names: it is its name or its mark.
func (s *State) Sort(name string) {
	slices.SortFunc(s.Keys, func(a, b KeyState) int {
		blocked := func(k KeyState) int {
			if k.Mark != "" {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(blocked(a), blocked(b)), cmp.Compare(b.Waiting, a.Waiting),
			cmp.Compare(a.Key, b.Key))
	})
	told := s.Keys[:0]
	for i, k := range s.Keys {
		if i < MaxKeys || name != "" && (k.Key == name || k.Mark == name) {
			told = append(told, k)
		}
	}
	s.Others = len(s.Keys) - len(told)
	s.Keys = told
}
