package brake

// KeyNews tells the other instances of one key of a budget.
type KeyNews struct {
	Key  string  `json:"key"`
	Kind KeyKind `json:"kind"`
}

// KeyKind says what happened to a key.
type KeyKind string

// The kinds of KeyNews.
const (
	KeyStopped KeyKind = "stopped"
	KeyProbed  KeyKind = "probed" // a probe has begun
	KeyFailed  KeyKind = "failed" // a probe has failed
	KeyStarted KeyKind = "started"
)

// mostKeyNews is how many news may wait for the fleet. More are dropped: an instance that does
// not hear of a key finds out by itself.
const mostKeyNews = 256

// longestKey is the most bytes of a key in news. Any client may publish news.
const longestKey = 1024

// OnKey names the function that takes the news of other instances. Call it before Join.
func (b *Brake) OnKey(heard func(KeyNews)) { b.heard = heard }

// TellKey leaves news of a key for the fleet.
func (b *Brake) TellKey(news KeyNews) {
	if !b.Joined() || len(news.Key) > longestKey {
		return
	}
	select {
	case b.keyNews <- news:
	default:
	}
}

// KeyNews returns the news for the fleet.
func (b *Brake) KeyNews() <-chan KeyNews { return b.keyNews }

// HearKey takes news of another instance.
func (b *Brake) HearKey(news KeyNews) {
	if b.heard != nil && news.Key != "" && len(news.Key) <= longestKey {
		b.heard(news)
	}
}
