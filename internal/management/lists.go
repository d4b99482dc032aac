package management

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"strconv"
)

const (
	// pageSize is the most that the API allows.
	pageSize = 500
	// maxPasses bounds how often a list that changes is read.
	maxPasses = 3
)

// queueColumns are the fields of Queue. Without columns an answer is ten times as long.
const queueColumns = "name,type,durable,auto_delete,exclusive,arguments,consumers,messages," +
	"messages_ready,messages_unacknowledged,messages_dlx"

// Queues shows every queue of a vhost, in pages. A queue that is declared or deleted meanwhile
// moves others from page to page. So the list is read again, at most twice, while its length
// changes. Then queues are shown more than once. settled says that the last pass saw no change.
func (a *API) Queues(
	ctx context.Context, vhost string, see func(Queue),
) (settled bool, err error) {
	return pages(ctx, a, queueColumns, see, "queues", vhost)
}

// Exchange is an exchange as the API shows it.
type Exchange struct {
	Name       string `json:"name"`
	Kind       string `json:"type"`
	AutoDelete bool   `json:"auto_delete"`
	Arguments  Object `json:"arguments"`
}

// Exchanges shows every exchange of a vhost like Queues.
func (a *API) Exchanges(
	ctx context.Context, vhost string, see func(Exchange),
) (settled bool, err error) {
	return pages(ctx, a, "name,type,auto_delete,arguments", see, "exchanges", vhost)
}

// Bound is a binding with its arguments.
type Bound struct {
	Binding
	Arguments Object `json:"arguments"`
}

// BindingsFrom shows the bindings that begin at an exchange one by one, because the API has no
// pages of them. The error is ErrNotFound where the exchange is gone.
func (a *API) BindingsFrom(
	ctx context.Context, vhost, exchange string, see func(Bound),
) error {
	return each(ctx, a, see, "exchanges", vhost, exchange, "bindings", "source")
}

// Consumer is a consumer of a queue.
type Consumer struct {
	Queue struct {
		Name string `json:"name"`
	} `json:"queue"`
	Tag string `json:"consumer_tag"`
	// Channel is [] where the broker has not looked at the channel yet.
	Channel Object `json:"channel_details"`
}

// Consumers shows all consumers of a vhost one by one. A user without permissions in the vhost is
// shown none.
func (a *API) Consumers(ctx context.Context, vhost string, see func(Consumer)) error {
	return each(ctx, a, see, "consumers", vhost)
}

// page is the answer to a question for a page.
type page[T any] struct {
	Items []T  `json:"items"`
	Total *int `json:"total_count"`
}

func pages[T any](
	ctx context.Context, a *API, columns string, see func(T), path ...string,
) (settled bool, err error) {
	for pass := 0; pass < maxPasses && !settled; pass++ {
		if settled, err = onePass(ctx, a, columns, see, path); err != nil {
			return false, err
		}
	}
	return settled, nil
}

// onePass reads all pages once, and reports whether they agree on the length of the list and
// have as many items.
func onePass[T any](
	ctx context.Context, a *API, columns string, see func(T), path []string,
) (settled bool, err error) {
	settled = true
	total, n := -1, 0
	for number := 1; ; number++ {
		query := url.Values{
			"page": {strconv.Itoa(number)}, "page_size": {strconv.Itoa(pageSize)},
			"sort": {"name"}, "columns": {columns},
		}
		var p page[T]
		err := a.ask(ctx, query, func(body io.Reader) error {
			err := json.NewDecoder(io.LimitReader(body, maxAnswer)).Decode(&p)
			if err == nil && p.Total == nil {
				err = errors.New("it is no page")
			}
			return err
		}, path...)
		switch {
		case errors.Is(err, errRefused) && number > 1:
			return false, nil // the last pages went meanwhile
		case err != nil:
			return false, err
		}
		for _, item := range p.Items {
			see(item)
		}
		n += len(p.Items)
		settled = settled && (total < 0 || *p.Total == total)
		if total = *p.Total; len(p.Items) == 0 || n >= total {
			return settled && n == total, nil
		}
	}
}

// each decodes a list element by element, so that its length does not matter.
func each[T any](ctx context.Context, a *API, see func(T), path ...string) error {
	return a.ask(ctx, nil, func(body io.Reader) error {
		dec := json.NewDecoder(body)
		token, err := dec.Token()
		if err == nil && token != json.Delim('[') {
			err = errors.New("it is no list")
		}
		for err == nil && dec.More() {
			var item T
			if err = dec.Decode(&item); err == nil {
				see(item)
			}
		}
		if err == nil {
			_, err = dec.Token()
		}
		return err
	}, path...)
}
