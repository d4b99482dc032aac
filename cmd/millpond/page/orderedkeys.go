package page

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"strconv"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/topology/operate"
)

// orderView are the keys of a queue that is handled in order.
type orderView struct {
	looked
	Queue   string
	Line    operate.Queue
	State   operate.OrderState
	Blocked int
	Near    bool // the line is near its bound
	Rows    []keyRow
	More    int // keys that are not shown
}

// keyRow is a key.
type keyRow struct {
	operate.OrderKey
	// Text is the key as it may be shown, and ID names it in forms.
	Text, ID string
}

// maxKeys is how many keys the page shows.
const maxKeys = 200

// orderTask names the looks at the keys of a queue.
func orderTask(queue string) string { return "order\x00" + queue }

// orderOf returns the keys as the last look has seen them.
func (h *Handler) orderOf(main *operate.Main) *orderView {
	v := &orderView{Queue: main.Name, Line: *main.Line}
	v.looked, v.State = lastLook[operate.OrderState](h, orderTask(main.Name))
	v.Moved = h.movedSince(main.Name, v.Looked)
	v.Blocked = len(v.State.BlockedKeys())
	v.Near = v.State.NearBound()
	shown := v.State.Keys[:min(len(v.State.Keys), maxKeys)]
	v.More = len(v.State.Keys) - len(shown) + v.State.Others
	for _, k := range shown {
		v.Rows = append(v.Rows, keyRow{OrderKey: k, Text: h.shownKey(k.Key), ID: h.keyID(k.Key)})
	}
	return v
}

// lookOrder asks which keys wait.
func (h *Handler) lookOrder(w http.ResponseWriter, r *http.Request) error {
	name := r.Form.Get("queue")
	main, ok := h.watcher.sight(r.Context()).Vhost.Main(name)
	if !ok || main.Line == nil {
		return notFound("there is no queue %q that is handled in order in this virtual host", name)
	}
	return h.lookAndShow(w, r, orderTask(name), "/waiting?"+url.Values{"queue": {name}}.Encode(),
		func(ctx context.Context, o *operate.Operator, _ func(string)) (any, error) {
			state, err := o.Order(ctx, main.Plan)
			if err != nil {
				return nil, err
			}
			return state, nil
		})
}

// keyID names a key in forms. It depends on a secret of the process, so that a masked key cannot be
// guessed.
func (h *Handler) keyID(key string) string {
	sum := hmac.New(sha256.New, h.key)
	sum.Write([]byte("key " + key)) // never fails
	return hex.EncodeToString(sum.Sum(nil)[:12])
}

// keyOf returns the key with an ID, of the last look at the keys of a queue.
func (h *Handler) keyOf(queue, id string) (string, error) {
	_, state := lastLook[operate.OrderState](h, orderTask(queue))
	for _, k := range state.Keys {
		if h.keyID(k.Key) == id && k.Key != "" {
			return k.Key, nil
		}
	}
	return "", failure{http.StatusConflict, errors.New("the last look has not seen the key: " +
		"look at the keys again")}
}

// maxKeyText is how many characters of a key are shown.
const maxKeyText = 80

// shownKey is a key as it may be shown: a key may be personal data, as a payload is.
func (h *Handler) shownKey(key string) string {
	if len(h.masks) > 0 {
		return "(masked " + h.keyID(key)[:6] + ")"
	}
	return strconv.Quote(oneLine(maxKeyText, key))
}

// shownHeaders are the headers of a letter as they may be shown.
func (h *Handler) shownHeaders(headers amqp.Table) amqp.Table {
	key, ok := headers[keys.DeadKey].(string)
	if !ok || len(h.masks) == 0 {
		return headers
	}
	headers = maps.Clone(headers)
	headers[keys.DeadKey] = h.shownKey(key)
	return headers
}

// refuseKeys refuses a filter that tells a masked key.
func (h *Handler) refuseKeys(o operate.Filter) error {
	if _, tells := o.Headers[keys.DeadKey]; tells && len(h.masks) > 0 {
		return badRequest("keys are masked here: nothing can be chosen by the header %s", keys.DeadKey)
	}
	return nil
}
