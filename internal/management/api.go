// Package management asks RabbitMQ's management API for facts that AMQP does not show: types,
// arguments and counts of queues, policies, bindings, feature flags and the alarms of nodes.
//
// Every call is a GET request, or one for each page of a list. It is bounded by its context, and
// its answer by 1 MiB for each item and 64 MiB in all. An API keeps no connection open, sends the
// credentials to its own address alone, and never quotes them in an error.
package management

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

const encodeReserved = "reserved characters in user and password must be percent-encoded"

// ErrNotFound says that there is no object of that name.
var ErrNotFound = errors.New("not found")

// errRefused: the API does not take the question, for example for a page behind the last one.
var errRefused = errors.New("the question is refused")

// errBroken: the API has failed to answer.
var errBroken = errors.New(http.StatusText(http.StatusInternalServerError))

// API is one management API. Its methods may be called from many goroutines.
type API struct {
	base           string // without credentials, without a slash at the end
	user, password string
	client         *http.Client
}

// New returns the API at rawURL, which is http or https and contains user and password. Its errors
// quote nothing of the URL. config is for https. It may be nil, and is not written to.
func New(rawURL string, config *tls.Config) (*API, error) {
	u, err := url.Parse(rawURL)
	switch {
	case rawURL == "":
		return nil, errors.New("the URL is empty: set one, for example http://user:password@host:15672")
	case err != nil:
		return nil, errors.New("the URL cannot be parsed; " + encodeReserved)
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("the URL must begin with http:// or https://")
	case u.Hostname() == "":
		return nil, errors.New("the URL names no host")
	case u.User.Username() == "":
		return nil, errors.New("the URL names no user: http://user:password@host:15672")
	case u.RawQuery != "" || u.Fragment != "" || strings.Contains(u.Path, "@"):
		// A reserved character in the password puts a piece of the password there.
		return nil, errors.New("the URL has a query, a fragment or an @ in its path; " + encodeReserved)
	}
	a := &API{user: u.User.Username()}
	a.password, _ = u.User.Password()
	u.User = nil
	a.base = strings.TrimSuffix(strings.TrimRight(u.String(), "/"), "/api")
	if config = config.Clone(); config != nil {
		config.ServerName = "" // it may be another host
	}
	a.client = &http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, TLSClientConfig: config,
		},
		// The credentials are for this address alone.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return a, nil
}

// String returns the address without credentials.
func (a *API) String() string { return a.base }

// Queue is a queue as the API shows it. Its counts are seconds old. They are nil if the broker has
// not counted yet.
type Queue struct {
	Name       string `json:"name"`
	Type       string `json:"type"`
	Durable    bool   `json:"durable"`
	AutoDelete bool   `json:"auto_delete"`
	Exclusive  bool   `json:"exclusive"`
	Arguments  Object `json:"arguments"`
	Consumers  *int   `json:"consumers"`
	Messages   *int   `json:"messages"`
	Ready      *int   `json:"messages_ready"`
	Unacked    *int   `json:"messages_unacknowledged"`
	Held       *int   `json:"messages_dlx"` // quorum queues only
	// Stats has messages a second, as the API has averaged them: In counts messages that came into the
	// queue, Out the deliveries to consumers. They are nil where nothing has happened yet, or where
	// the broker collects no statistics.
	Stats struct {
		In  Rate `json:"publish_details"`
		Out Rate `json:"deliver_get_details"`
	} `json:"message_stats"`
	// Members are the nodes of a quorum queue. A classic one has none.
	Members []string `json:"members"`
}

// Rate is messages a second.
type Rate struct {
	Rate *float64 `json:"rate"`
}

// Object is a JSON object. The API writes some empty ones as [] or "".
type Object map[string]any

// UnmarshalJSON implements json.Unmarshaler. Numbers become json.Number.
func (o *Object) UnmarshalJSON(data []byte) error {
	if len(data) == 0 || data[0] != '{' {
		*o = nil
		return nil
	}
	dec := json.NewDecoder(strings.NewReader(string(data)))
	dec.UseNumber()
	var values map[string]any
	err := dec.Decode(&values)
	*o = values
	return err
}

// Queue returns a queue, or ErrNotFound.
func (a *API) Queue(ctx context.Context, vhost, name string) (Queue, error) {
	var q Queue
	columns := url.Values{"columns": {queueColumns + ",members"}}
	err := a.ask(ctx, columns, func(r *answer) error { return r.Decode(&q) }, "queues", vhost, name)
	return q, err
}

// Policy is a policy or an operator policy of a vhost.
type Policy struct {
	Name       string `json:"name"`
	Pattern    string `json:"pattern"`
	ApplyTo    string `json:"apply-to"`
	Priority   int    `json:"priority"`
	Definition Object `json:"definition"`
}

// Policies returns the policies of a vhost as they are now. The API's view of a queue shows a
// change up to ten seconds later (F35).
func (a *API) Policies(ctx context.Context, vhost string) ([]Policy, error) {
	return list[Policy](ctx, a, "policies", vhost)
}

// OperatorPolicies returns the operator policies of a vhost as they are now.
func (a *API) OperatorPolicies(ctx context.Context, vhost string) ([]Policy, error) {
	return list[Policy](ctx, a, "operator-policies", vhost)
}

// Binding leads from an exchange to a queue or to another exchange.
type Binding struct {
	Destination     string `json:"destination"`
	DestinationType string `json:"destination_type"`
	RoutingKey      string `json:"routing_key"`
}

// Bound is a binding with its arguments.
type Bound struct {
	Binding
	Arguments Object `json:"arguments"`
}

// Bindings returns the bindings that begin at an exchange, or ErrNotFound.
func (a *API) Bindings(ctx context.Context, vhost, exchange string) ([]Bound, error) {
	return list[Bound](ctx, a, "exchanges", vhost, exchange, "bindings", "source")
}

// FeatureFlags returns the state of every feature flag by its name.
func (a *API) FeatureFlags(ctx context.Context) (map[string]string, error) {
	type flag struct {
		Name  string `json:"name"`
		State string `json:"state"`
	}
	flags, err := list[flag](ctx, a, "feature-flags")
	states := make(map[string]string, len(flags))
	for _, f := range flags {
		states[f.Name] = f.State
	}
	return states, err
}

// IsOf returns an error if the API belongs to another cluster than the one whose cluster_name the
// broker sends over AMQP, or has not answered when ctx is done. An API that does not name its
// cluster, or an empty name, is no error.
func (a *API) IsOf(ctx context.Context, cluster string) error {
	if cluster == "" {
		return nil
	}
	var found struct {
		Name string `json:"name"`
	}
	err := a.ask(ctx, nil, func(r *answer) error { return r.Decode(&found) }, "cluster-name")
	switch {
	case err != nil && ctx.Err() != nil: // the next question would take as long again
		return err
	case err == nil && found.Name != "" && found.Name != cluster:
		return fmt.Errorf("%s belongs to cluster %q, and the AMQP URL leads to cluster %q: name the API "+
			"of that cluster", a, found.Name, cluster)
	}
	return nil
}

// Node is a node of the cluster. Alarms and limits are absent if the node collects no statistics,
// and in the first seconds after its start.
type Node struct {
	Name          string `json:"name"`
	MemoryAlarm   bool   `json:"mem_alarm"`
	DiskAlarm     bool   `json:"disk_free_alarm"`
	DiskFreeLimit any    `json:"disk_free_limit"` // a number of bytes, if it is known
}

// Nodes returns all nodes of the cluster, also the nodes that are down.
func (a *API) Nodes(ctx context.Context) ([]Node, error) {
	return list[Node](ctx, a, "nodes")
}

// address returns the address of an object.
func (a *API) address(path []string) string {
	address := a.base + "/api"
	for _, segment := range path {
		address += "/" + url.PathEscape(segment)
	}
	return address
}

// tags are the user tags that questions take which need more than the tag management.
var tags = map[string]string{
	"nodes": "monitoring", "feature-flags": "management (before RabbitMQ 4.0 administrator)",
}

// ask sends a question and lets read decode the answer. RabbitMQ 3.10 has answered a list of queues
// with status 500, once in a test that declared queues meanwhile: that question is sent once more.
func (a *API) ask(
	ctx context.Context, query url.Values, read func(*answer) error, path ...string,
) error {
	err := a.askOnce(ctx, query, read, path...)
	if errors.Is(err, errBroken) && ctx.Err() == nil {
		err = a.askOnce(ctx, query, read, path...)
	}
	return err
}

func (a *API) askOnce(
	ctx context.Context, query url.Values, read func(*answer) error, path ...string,
) error {
	address := a.address(path)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	req.URL.RawQuery = query.Encode()
	req.SetBasicAuth(a.user, a.password)
	resp, err := a.client.Do(req)
	if err != nil {
		var failed *url.Error // which names the address with its query
		if errors.As(err, &failed) {
			err = failed.Err
		}
		return fmt.Errorf("get %s: %w", address, err)
	}
	defer func() { _ = resp.Body.Close() }()
	// The text of resp.Status is the server's.
	status := strings.TrimSpace(fmt.Sprint(resp.StatusCode, " ", http.StatusText(resp.StatusCode)))
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return fmt.Errorf("get %s: %w", address, ErrNotFound)
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("get %s: %s: the user needs the right password, the tag %s and permissions "+
			"in the vhost", address, status, cmp.Or(tags[path[0]], "management"))
	case http.StatusInternalServerError:
		return fmt.Errorf("get %s: %d %w", address, resp.StatusCode, errBroken)
	case http.StatusBadRequest:
		return fmt.Errorf("get %s: %s: %w", address, status, errRefused)
	default:
		return fmt.Errorf("get %s: %s", address, status)
	}
	err = read(newAnswer(resp.Body))
	switch {
	case errors.Is(err, ErrTooLarge):
		return fmt.Errorf("get %s: %w", address, err)
	case err != nil:
		return fmt.Errorf("get %s: not an answer of the management API: %w", address, err)
	}
	return nil
}
