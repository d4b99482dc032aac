package page

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/cmd/millpond/internal/history"
	"github.com/millpond-go/millpond/cmd/millpond/page/internal/job"
	"github.com/millpond-go/millpond/internal/management"
	"github.com/millpond-go/millpond/topology/operate"
	"github.com/millpond-go/millpond/topology/operate/doctor"
)

// Config says which broker a page shows, and to whom. Every field may be empty, except for URL.
type Config struct {
	// URL is the AMQP URL of the broker.
	URL string
	// Management is the URL of its management API, which shows the queues. Default: the host and the
	// user of URL, see operate.ManagementURL.
	Management string
	// Operator are options for the connections to the broker, such as operate.WithAMQP for TLS.
	// Default: none.
	Operator []operate.Option
	// Doctor are options for the page of the doctor, such as doctor.WithAMQP. Default: none.
	Doctor []doctor.Option
	// BasePath is the path of the page, such as /ops/millpond, in a mux or behind a proxy. The proxy
	// may strip it. No header of a request changes it. Default: /.
	BasePath string
	// Hosts are the names under which browsers reach the page. Default: localhost and IP addresses,
	// which are always allowed.
	Hosts []string
	// Accounts may use the page. Default: everybody who reaches it, with RoleRead.
	Accounts []Account
	// Authorize says who asks, and what this person may do, in place of Accounts: for a service that
	// knows its users. The page calls it for each request, from many goroutines. The name is in the
	// audit log. An empty name, or another role than RoleRead and RoleAct, is refused with 403.
	// Default: Accounts decide.
	Authorize func(*http.Request) (name string, role Role)
	// AllowActions lets accounts with RoleAct change queues, and run the doctor, which declares some.
	// It needs Accounts or Authorize. Default: the page only reads.
	AllowActions bool
	// StateFolder keeps the journal of actions, and the letters that were discarded. One page uses it
	// at a time. It belongs to the user of the process, and neither it nor a file in it is a symbolic
	// link. Default: actions are forgotten when the process ends, and nothing can be discarded.
	StateFolder string
	// AuditFile is the audit log, a line of JSON for what each person has begun and how it ended. The
	// tool, with --audit, and other pages may share it. Default: audit.jsonl in StateFolder.
	AuditFile string
	// Masks are JSON paths, such as $.card.number or $..email. The values there are never shown.
	// Payloads that are no JSON are then not shown at all. Default: payloads are shown.
	Masks []string
	// Prometheus is the URL of a Prometheus server, which charts of more than the last hour ask.
	// Default: charts have the last hour, as the page has seen it.
	Prometheus string
	// Interval between looks at the management API while a page is open. Default: 5 s.
	Interval time.Duration
}

// Handler is the page. It is an http.Handler, and its methods may be called from many goroutines.
type Handler struct {
	config   Config
	base     string // without a slash at the end
	api      string
	vhost    string
	masks    []mask
	guard    *guard
	mux      *http.ServeMux
	pages    *template.Template
	hub      *hub
	watcher  *watcher
	history  history.History
	past     *history.Prometheus // nil without Config.Prometheus
	letters  *letterStore
	tasks    *tasks
	forms    keptForms
	jobs     *job.Manager // nil without Config.AllowActions
	showing  sync.WaitGroup
	key      []byte // of form tokens
	ctx      context.Context
	end      context.CancelFunc
	requests chan struct{}
	outside  chan struct{} // requests before a login
	streams  chan struct{}
	behind   sync.Mutex // held by a look at messages that wait
	nextKeys time.Time  // when a look may ask for blocked keys again; only a look uses it

	mu       sync.Mutex
	operator *operate.Operator
	closed   bool
}

const (
	// maxRequests and maxStreams bound the requests under way, maxOutside those before a login.
	maxRequests = 256
	maxOutside  = 16
	maxStreams  = 128
)

// New makes a page. It waits for no connection: a broker that is down is shown as such. The error
// names every problem, and quotes no password.
func New(config Config) (*Handler, error) {
	h := &Handler{
		config: config, hub: newHub(), letters: new(letterStore), tasks: newTasks(),
		key:      make([]byte, 32),
		requests: make(chan struct{}, maxRequests), outside: make(chan struct{}, maxOutside),
		streams: make(chan struct{}, maxStreams),
	}
	_, _ = rand.Read(h.key) // never fails
	problems := []error{h.broker(), h.path()}
	for _, text := range config.Masks {
		m, err := parseMask(text)
		h.masks, problems = append(h.masks, m), append(problems, err)
	}
	var err error
	h.guard, err = newGuard(config)
	problems = append(problems, err)
	if config.Prometheus != "" {
		h.past, err = history.NewPrometheus(config.Prometheus)
		problems = append(problems, err)
	}
	if config.Interval == 0 {
		h.config.Interval = 5 * time.Second
	}
	if config.Interval < 0 {
		problems = append(problems, fmt.Errorf("negative Interval %v", config.Interval))
	}
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("page: %w", err)
	}
	h.ctx, h.end = context.WithCancel(context.Background())
	h.pages = template.Must(
		template.New("").Funcs(functions(h.base)).ParseFS(templates, "templates/*.html"))
	h.watcher = newWatcher(h.ctx, h.config.Interval, h.look, h.showNow)
	h.mux = h.routes()
	if err := h.openJobs(); err != nil {
		h.end()
		return nil, fmt.Errorf("page: %w", err)
	}
	h.watcher.under.Go(h.watcher.sample)
	return h, nil
}

// broker reads the URLs.
func (h *Handler) broker() error {
	uri, err := amqp.ParseURI(h.config.URL)
	if err != nil {
		return errors.New("URL is no AMQP URL; " +
			"reserved characters in user and password must be percent-encoded")
	}
	h.vhost, h.api = uri.Vhost, h.config.Management
	if h.api == "" {
		if h.api, err = operate.ManagementURL(h.config.URL, false); err != nil {
			return err
		}
	}
	_, err = management.New(h.api, nil)
	return err
}

func (h *Handler) path() error {
	h.base = strings.TrimRight(h.config.BasePath, "/")
	if h.base != "" && !basePath.MatchString(h.base) {
		return fmt.Errorf("BasePath %q: write it as in /ops/millpond, with letters, digits and -_.~",
			h.config.BasePath)
	}
	return nil
}

var basePath = regexp.MustCompile(`^(/[A-Za-z0-9_.~-]+)+$`)

// Close ends looks and connections. Requests after it are answered with an error.
func (h *Handler) Close() error {
	h.end()
	h.watcher.under.Wait()
	h.tasks.under.Wait()
	err := h.closeJobs()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	if h.operator == nil {
		return err
	}
	return errors.Join(err, h.operator.Close())
}

const (
	// lookBehind is how often open pages look at messages that wait, to find those whose queue is
	// gone.
	lookBehind = 5 * time.Minute
	// askKeys is how often they ask for blocked keys, and less often where that takes long.
	askKeys = 15 * time.Second
)

// look asks the management API, and the brakes. While no page is open it is quiet, and looks at no
// message.
func (h *Handler) look(ctx context.Context, quiet bool) (*sight, error) {
	view, err := h.lookAround(ctx, quiet)
	if err != nil {
		return nil, err
	}
	return &sight{Vhost: view, Incidents: h.history.Look(time.Now(), view, h.shownKey)}, nil
}

func (h *Handler) lookAround(ctx context.Context, quiet bool) (operate.View, error) {
	operator, refused := h.connected(ctx)
	last := h.watcher.lastSight().Vhost
	if refused == nil {
		options := operate.ViewOptions{Brakes: true, Last: &last}
		begun := time.Now()
		old := begun.Sub(last.Looked) > lookBehind
		if !quiet && (old || begun.After(h.nextKeys)) {
			select {
			case h.tasks.one <- struct{}{}:
				h.behind.Lock()
				options.Keys = !h.acting()
				options.Trouble = options.Keys && old
				defer func() { h.behind.Unlock(); <-h.tasks.one }()
			default: // the next look does it
			}
		}
		view, err := operator.View(ctx, options)
		if options.Keys {
			h.nextKeys = time.Now().Add(min(max(askKeys, 20*time.Since(begun)), lookBehind))
		}
		return view, err
	}
	view, err := operate.ManagementView(ctx, h.config.URL, h.options()...)
	view.Gone, view.Looked = last.Gone, last.Looked
	if len(view.Brakes) > 0 {
		text := fmt.Sprintf("stopped brakes could not be read: %v", refused)
		view.Unclear = append(view.Unclear, operate.Unclear{Text: text})
	}
	return view, err
}

// options are those of each connection to the broker.
func (h *Handler) options() []operate.Option {
	return append([]operate.Option{
		operate.WithName("millpond page"), operate.WithManagement(h.api),
	}, h.config.Operator...)
}

// connected returns the operator, and connects if it is the first call that can.
func (h *Handler) connected(ctx context.Context) (*operate.Operator, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return nil, errors.New("the page is closed")
	case h.operator != nil:
		return h.operator, nil
	}
	var err error
	h.operator, err = operate.Open(ctx, h.config.URL, h.options()...)
	if err != nil {
		h.operator = nil
	}
	return h.operator, err
}
