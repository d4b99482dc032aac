package brake

import "github.com/millpond-go/millpond/internal/seam"

// mostKeyNews is how many news may wait for the fleet. More are dropped: an instance that does
// not hear of a key finds out by itself.
const mostKeyNews = 256

// longestKey is the most bytes of a key in news. Any client may publish news.
const longestKey = 1024

// OnKey names the function that takes the news of other instances. Call it before Join.
func (b *Brake) OnKey(heard func(seam.KeyNews)) { b.heard = heard }

// TellKey leaves news of a key for the fleet.
func (b *Brake) TellKey(news seam.KeyNews) {
	if !b.Joined() || len(news.Key) > longestKey {
		return
	}
	select {
	case b.keyNews <- news:
	default:
	}
}

// KeyNews returns the news for the fleet.
func (b *Brake) KeyNews() <-chan seam.KeyNews { return b.keyNews }

// HearKey takes news of another instance.
func (b *Brake) HearKey(news seam.KeyNews) {
	if b.heard != nil && news.Key != "" && len(news.Key) <= longestKey {
		b.heard(news)
	}
}
