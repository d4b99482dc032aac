package page

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/millpond-go/millpond/topology/operate"
	"github.com/millpond-go/millpond/topology/operate/doctor"
)

// verifyView is the page of the findings of Verify.
type verifyView struct {
	Now     time.Time
	Queues  []queueChoice
	Queue   string
	Running []*task
	Err     string
	Looked  time.Time
	Checked int
	// Critical and Warnings are the findings, Unchecked the things that could not be looked at.
	Critical, Warnings, Unchecked []findingRow
}

// findingRow is a finding with its meaning in plain words.
type findingRow struct {
	operate.Finding
	Meaning string
}

// verified is the result of a look.
type verified struct {
	findings []operate.Finding
	queues   int
}

// meanings explain the problems of Verify to a developer who does not know RabbitMQ.
var meanings = map[operate.Problem]string{
	operate.Missing: "The service expects this on the broker, and it is not there. Messages that " +
		"should go through it do not arrive.",
	operate.Conflicting: "It was made with other settings than the service needs. RabbitMQ does not " +
		"change the settings of a queue that exists.",
	operate.Dropping: "The queue is allowed to throw messages away.",
	operate.Overruled: "An administrator's policy changes how this behaves, on top of its own " +
		"settings.",
	operate.Exposed: "It works now, and a failure of one machine or a full disk could lose " +
		"messages.",
	operate.Disabled: "A function of the broker that this needs is switched off.",
	operate.Consumed: "A program reads messages that are only waiting here. They should be left " +
		"alone until their time is up.",
	operate.Unchecked: "This could not be looked at, so nothing is known about it: neither good nor " +
		"bad.",
}

const maxFindings = 500

func (h *Handler) verify(w http.ResponseWriter, r *http.Request) error {
	s := h.watcher.sight(r.Context())
	if s.At.IsZero() {
		return notSeen(s)
	}
	v := &verifyView{Now: time.Now(), Queue: r.URL.Query().Get("queue")}
	for _, main := range s.Vhost.Mains {
		v.Queues = append(v.Queues, queueChoice{Name: main.Name, Chosen: main.Name == v.Queue})
	}
	if _, ok := s.Vhost.Main(v.Queue); v.Queue != "" && !ok {
		return notFound("there is no queue %q with retries in this virtual host", v.Queue)
	}
	switch t := h.tasks.last("verify\x00" + v.Queue); {
	case t == nil:
	case t.Running():
		v.Running = append(v.Running, t)
	default:
		if t.Err != nil {
			v.Err = t.Err.Error()
		}
		if found, ok := t.Value.(verified); ok {
			v.Looked = t.At
			v.sort(found)
		}
	}
	h.render(w, r, http.StatusOK, "verify", view{
		Title: "Verify", Nav: "verify", Data: v, Running: v.Running,
	})
	return nil
}

func (v *verifyView) sort(found verified) {
	v.Checked = found.queues
	for _, f := range found.findings {
		into := &v.Warnings
		switch {
		case f.Problem == operate.Unchecked:
			into = &v.Unchecked
		case f.Severity == operate.Critical:
			into = &v.Critical
		}
		*into = append(*into, findingRow{f, meanings[f.Problem]})
	}
}

func (h *Handler) lookVerify(w http.ResponseWriter, r *http.Request) error {
	queue := r.Form.Get("queue")
	vhost := h.watcher.sight(r.Context()).Vhost
	mains := vhost.Mains
	if queue != "" {
		main, ok := vhost.Main(queue)
		if !ok {
			return notFound("there is no queue %q with retries in this virtual host", queue)
		}
		mains = append(mains[:0:0], main)
	}
	t := h.begin("verify\x00"+queue, func(ctx context.Context, note func(string)) (any, error) {
		operator, err := h.connected(ctx)
		if err != nil {
			return nil, err
		}
		var found verified
		for _, main := range mains {
			note(fmt.Sprintf("%s of %s", digits(found.queues), plural(len(mains), "queue")))
			findings, err := operator.Verify(ctx, main.Plan)
			switch {
			case ctx.Err() != nil:
				return nil, err
			case err != nil:
				findings = []operate.Finding{{
					Severity: operate.Critical, Problem: operate.Conflicting, Kind: "queue", Name: main.Name,
					Text: err.Error(),
				}}
			}
			found.queues++
			for _, f := range findings {
				if len(found.findings) < maxFindings && !slices.Contains(found.findings, f) {
					found.findings = append(found.findings, f)
				}
			}
		}
		return found, nil
	})
	await(r.Context(), []*task{t})
	path := "/verify"
	if queue != "" {
		path += "?" + filter{Queues: []string{queue}}.query()
	}
	h.to(w, r, path)
	return nil
}

// doctorView is the page of the doctor.
type doctorView struct {
	Now     time.Time
	Running []*task
	Err     string
	Looked  time.Time
	Report  *doctor.Report
	// Counts by status.
	Differ, Unknown, OK int
}

const doctorKey = "doctor"

func (h *Handler) doctor(w http.ResponseWriter, r *http.Request) error {
	v := &doctorView{Now: time.Now()}
	switch t := h.tasks.last(doctorKey); {
	case t == nil:
	case t.Running():
		v.Running = append(v.Running, t)
	default:
		if t.Err != nil {
			v.Err = t.Err.Error()
		}
		if v.Report, _ = t.Value.(*doctor.Report); v.Report != nil {
			v.Looked = t.At
			for _, c := range v.Report.Checks {
				switch c.Status {
				case doctor.OK:
					v.OK++
				case doctor.Differs:
					v.Differ++
				default:
					v.Unknown++
				}
			}
		}
	}
	h.render(w, r, http.StatusOK, "doctor", view{
		Title: "Doctor", Nav: "doctor", Data: v, Running: v.Running,
	})
	return nil
}

func (h *Handler) lookDoctor(w http.ResponseWriter, r *http.Request) error {
	t := h.begin(doctorKey, func(ctx context.Context, note func(string)) (any, error) {
		note("experiments in scratch queues, less than a minute")
		options := append([]doctor.Option{doctor.WithManagement(h.api)}, h.config.Doctor...)
		report, err := doctor.Examine(ctx, h.config.URL, options...)
		if report == nil {
			return nil, cmp.Or(err, fmt.Errorf("there is no report"))
		}
		return report, err
	})
	await(r.Context(), []*task{t})
	h.to(w, r, "/doctor")
	return nil
}
