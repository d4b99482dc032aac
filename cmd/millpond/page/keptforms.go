package page

import (
	"net/http"
	"net/url"
	"sync"
	"time"
)

// maxKept bounds the forms that are kept, each of maxEdit bytes at most, and keptFor how long.
const (
	maxKept = 20
	keptFor = 15 * time.Minute
)

// keptForms keep what each person has typed last, until an action begins: the way back from its
// rehearsal leads to a page that is made anew.
type keptForms struct {
	mu  sync.Mutex
	all map[string]keptForm // by person
}

type keptForm struct {
	page   string
	values url.Values
	at     time.Time
}

// keep keeps the values of the form of a page. Without a page it keeps nothing any more.
func (k *keptForms) keep(who, page string, values url.Values) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.all, who)
	oldest := ""
	for name, f := range k.all {
		if time.Since(f.at) > keptFor {
			delete(k.all, name)
		} else if oldest == "" || f.at.Before(k.all[oldest].at) {
			oldest = name
		}
	}
	if len(k.all) >= maxKept {
		delete(k.all, oldest)
	}
	if page == "" {
		return
	}
	if k.all == nil {
		k.all = map[string]keptForm{}
	}
	k.all[who] = keptForm{page, values, time.Now()}
}

// of returns the values of the form of a page; nil without any.
func (k *keptForms) of(r *http.Request) url.Values {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.all[visitOf(r).who.name]
	if f.page != r.URL.RequestURI() || time.Since(f.at) > keptFor {
		return nil
	}
	return f.values
}
