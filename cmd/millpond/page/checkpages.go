package page

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"github.com/millpond-go/millpond/cmd/millpond/internal/overview"
	"github.com/millpond-go/millpond/topology/operate"
	"github.com/millpond-go/millpond/topology/operate/doctor"
)

// verifyView is the page of the findings of Verify.
type verifyView struct {
	looked
	Queues  []queueChoice
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
	operate.Dropping: "Messages can be lost in it, or on the way into it.",
	operate.Stranded: "The page Stranded shows them, and returns them.",
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
	s, err := h.seen(r.Context())
	if err != nil {
		return err
	}
	v := new(verifyView)
	queue := r.URL.Query().Get("queue")
	for _, main := range s.Vhost.Mains {
		v.Queues = append(v.Queues, queueChoice{Name: main.Name, Chosen: main.Name == queue})
	}
	if queue != "" {
		if _, err := s.main(queue); err != nil {
			return err
		}
	}
	var found verified
	v.looked, found = lastLook[verified](h, "verify\x00"+queue)
	v.sort(found)
	return h.show(w, r, "verify", view{
		Title: "Verify", Nav: "verify", Data: v, Running: v.Running,
		Count: len(v.Critical) + len(v.Warnings),
	})
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
	queue, path := r.Form.Get("queue"), "/verify"
	s := h.watcher.sight(r.Context())
	mains := s.Vhost.Mains
	if queue != "" {
		main, err := s.main(queue)
		if err != nil {
			return err
		}
		mains, path = []operate.Main{main}, path+"?"+url.Values{"queue": {queue}}.Encode()
	}
	return h.lookAndShow(w, r, "verify\x00"+queue, path,
		func(ctx context.Context, o *operate.Operator, note func(string)) (any, error) {
			var found verified
			for _, main := range mains {
				note(fmt.Sprintf("%s of %s", digits(found.queues), plural(len(mains), "queue")))
				report, err := overview.Verify(ctx, o, &s.Vhost, main.Plan)
				switch {
				case ctx.Err() != nil:
					return nil, err
				case err != nil:
					report.Findings = append(report.Findings, operate.Finding{
						Severity: operate.Critical, Problem: operate.Conflicting, Kind: "queue",
						Name: main.Name, Text: err.Error(),
					})
				}
				found.queues++
				for _, f := range report.Findings {
					if len(found.findings) < maxFindings && !slices.Contains(found.findings, f) {
						found.findings = append(found.findings, f)
					}
				}
			}
			return found, nil
		})
}

// doctorView is the page of the doctor.
type doctorView struct {
	looked
	Report *doctor.Report
	Count  map[string]int // of checks, by status
}

const doctorKey = "doctor"

func (h *Handler) doctor(w http.ResponseWriter, r *http.Request) error {
	v := &doctorView{Count: map[string]int{}}
	if v.looked, v.Report = lastLook[*doctor.Report](h, doctorKey); v.Report != nil {
		for _, c := range v.Report.Checks {
			v.Count[string(c.Status)]++
		}
	}
	return h.show(w, r, "doctor", view{
		Title: "Doctor", Nav: "doctor", Data: v, Running: v.Running,
	})
}

func (h *Handler) lookDoctor(w http.ResponseWriter, r *http.Request) error {
	t := h.begin(doctorKey, func(ctx context.Context, note func(string)) (any, error) {
		note("experiments in scratch queues, less than a minute")
		options := append([]doctor.Option{doctor.WithManagement(h.api)}, h.config.Doctor...)
		report, err := doctor.Examine(ctx, h.config.URL, options...)
		if report == nil {
			return nil, cmp.Or(err, errors.New("there is no report"))
		}
		return report, err
	})
	await(r.Context(), []*task{t})
	return h.to(w, r, "/doctor")
}
