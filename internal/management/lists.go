package management

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
)

const (
	// maxItem and maxAnswer are the bytes that are read of one item, and of one answer.
	maxItem   = 1 << 20
	maxAnswer = 64 << 20
	// pageSize is the most that the API allows.
	pageSize = 500
	// maxPasses bounds how often a list that changes is read.
	maxPasses = 3
)

// ErrTooLarge: an answer has an item of more than 1 MiB, or more than 64 MiB. The items before were
// shown.
var ErrTooLarge = errors.New("the answer is too large")

// answer decodes the body of an answer within the bounds.
type answer struct {
	*json.Decoder
	body      io.Reader
	item, all int // bytes that may still be read
}

func newAnswer(body io.Reader) *answer {
	r := &answer{body: body, item: maxItem, all: maxAnswer}
	r.Decoder = json.NewDecoder(r)
	return r
}

// Read implements io.Reader for the Decoder.
func (r *answer) Read(into []byte) (int, error) {
	switch {
	case r.all <= 0:
		return 0, fmt.Errorf("%w: it has more than %d bytes", ErrTooLarge, maxAnswer)
	case r.item <= 0:
		return 0, fmt.Errorf("%w: an item has more than %d bytes", ErrTooLarge, maxItem)
	}
	n, err := r.body.Read(into[:min(len(into), r.item, r.all)])
	r.item, r.all = r.item-n, r.all-n
	return n, err
}

// delim reads a bracket.
func (r *answer) delim(want json.Delim) error {
	token, err := r.Token()
	if err == nil && token != want {
		err = fmt.Errorf("it has %v in place of %v", token, want)
	}
	return err
}

// items decodes a list item by item, so that its length does not matter.
func items[T any](r *answer, see func(T)) (n int, err error) {
	for err = r.delim('['); err == nil && r.More(); n++ {
		var item T
		r.item = maxItem
		if err = r.Decode(&item); err == nil {
			see(item)
		}
	}
	if err == nil {
		err = r.delim(']')
	}
	return n, err
}

func list[T any](ctx context.Context, a *API, path ...string) (all []T, err error) {
	err = a.ask(ctx, nil, func(r *answer) error {
		_, err := items(r, func(item T) { all = append(all, item) })
		return err
	}, path...)
	return all, err
}

// pages shows a list that the API has in pages. An item that is declared or deleted meanwhile moves
// others from page to page. So the list is read again, at most twice, while its length changes.
// Then items are shown more than once. settled says that the last pass saw no change.
func pages[T any](
	ctx context.Context, a *API, query url.Values, see func(T), path ...string,
) (settled bool, err error) {
	for pass := 0; pass < maxPasses && !settled && err == nil; pass++ {
		settled, err = onePass(ctx, a, query, see, path)
	}
	return settled, err
}

// onePass reads all pages once, and reports whether they agree on the length of the list and
// have as many items.
func onePass[T any](
	ctx context.Context, a *API, query url.Values, see func(T), path []string,
) (settled bool, err error) {
	query = maps.Clone(query)
	query.Set("page_size", strconv.Itoa(pageSize))
	query.Set("sort", "name")
	settled = true
	before, n := -1, 0
	for number := 1; ; number++ {
		query.Set("page", strconv.Itoa(number))
		found, total := 0, -1
		err := a.ask(ctx, query, func(r *answer) (err error) {
			found, total, err = onePage(r, see)
			return err
		}, path...)
		switch {
		case errors.Is(err, errRefused) && number > 1:
			return false, nil // the last pages went meanwhile
		case err != nil:
			return false, err
		}
		n += found
		settled = settled && (before < 0 || total == before)
		if before = total; found == 0 || n >= total {
			return settled && n == total, nil
		}
	}
}

// onePage reads a page, and returns how many items it has and the whole list.
func onePage[T any](r *answer, see func(T)) (found, total int, err error) {
	counts := map[json.Token]*int{}
	for err = r.delim('{'); err == nil && r.More(); {
		var key json.Token
		if key, err = r.Token(); err != nil {
			break
		}
		r.item = maxItem
		switch key {
		case "items":
			found, err = items(r, see)
		case "total_count", "filtered_count": // with and without the names that are not asked for
			counts[key] = new(int)
			err = r.Decode(counts[key])
		default:
			err = r.Decode(new(json.RawMessage))
		}
	}
	if err == nil {
		err = r.delim('}')
	}
	all := counts["filtered_count"]
	if all == nil {
		all = counts["total_count"]
	}
	if err == nil && all == nil {
		err = errors.New("it is no page")
	}
	if err != nil {
		return 0, 0, err
	}
	return found, *all, nil
}

// queueColumns are the fields of Queue. Without columns an answer is ten times as long.
const queueColumns = "name,type,durable,auto_delete,exclusive,arguments,consumers,messages," +
	"messages_ready,messages_unacknowledged,messages_dlx,message_stats.publish_details.rate," +
	"message_stats.deliver_get_details.rate"

// Queues shows every queue of a vhost; see pages.
func (a *API) Queues(
	ctx context.Context, vhost string, see func(Queue),
) (settled bool, err error) {
	return pages(ctx, a, url.Values{"columns": {queueColumns}}, see, "queues", vhost)
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
	columns := url.Values{"columns": {"name,type,auto_delete,arguments"}}
	return pages(ctx, a, columns, see, "exchanges", vhost)
}

// Names returns the names of a vhost that begin with prefix, sorted. kind is "queues" or
// "exchanges". The broker searches, so that a vhost with many queues costs no long answer.
func (a *API) Names(ctx context.Context, kind, vhost, prefix string) ([]string, error) {
	type named struct {
		Name string `json:"name"`
	}
	query := url.Values{
		"columns": {"name"}, "use_regex": {"true"}, "name": {"^" + regexp.QuoteMeta(prefix)},
	}
	found := map[string]bool{}
	_, err := pages(ctx, a, query, func(n named) { found[n.Name] = true }, kind, vhost)
	return slices.Sorted(maps.Keys(found)), err
}
