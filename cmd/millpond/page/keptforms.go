package page

import (
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"
)

// maxKept bounds the forms that are kept, each of maxEdit bytes at most, and keptFor how long.
const (
	maxKept = 20
	keptFor = 15 * time.Minute
)

// keptForms keep what a person has typed into the form of a page until an action begins: the way
// back from its rehearsal leads to a page that is made anew.
type keptForms struct {
	mu  sync.Mutex
	all []keptForm // the oldest first
}

type keptForm struct {
	who, page string
	values    url.Values
	at        time.Time
}

// keep keeps the values of the form of a page.
func (k *keptForms) keep(who, page string, values url.Values) {
	k.drop(func(f keptForm) bool {
		return f.who == who && f.page == page || time.Since(f.at) > keptFor
	})
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all = append(k.all[max(len(k.all)-maxKept+1, 0):], keptForm{who, page, values, time.Now()})
}

// drop forgets forms.
func (k *keptForms) drop(is func(keptForm) bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all = slices.DeleteFunc(k.all, is)
}

// of returns the values of the form of a page; nil without any.
func (k *keptForms) of(r *http.Request) url.Values {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, f := range k.all {
		if f.who == visitOf(r).who.name && f.page == r.URL.RequestURI() && time.Since(f.at) < keptFor {
			return f.values
		}
	}
	return nil
}
