package doctor

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/management"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

const noManagement = "only the management API shows them: name it with WithManagement, " +
	"or with millpond --management"

// policies judges the policies of the plans. Without a plan it judges names that only a policy for
// all queues matches, and the names that services with Shared have in common.
func policies(b *bench) (Status, string) {
	if b.management == "" {
		return Unknown, noManagement
	}
	plans := b.plans
	if len(plans) == 0 {
		for _, strategy := range []topology.Strategy{topology.PerQueue{}, topology.Shared{}} {
			plan, err := strategy.Plan(b.prefix+"policies", nil)
			b.must(err)
			plans = append(plans, plan)
		}
	}
	// Nothing is declared, not even to compare it: some of the names are of other services.
	opts := []operate.Option{operate.WithManagement(b.management), operate.WithPreProvisioned()}
	if b.amqp != nil {
		opts = append(opts, operate.WithAMQP(*b.amqp))
	}
	o, err := operate.Open(b.ctx, b.url, opts...)
	b.must(err)
	defer func() { _ = o.Close() }()
	var harm, unseen []string
	said := map[string]bool{} // the same policy does the same to many queues
	for _, plan := range plans {
		report, err := o.Verify(b.ctx, plan)
		b.must(err)
		for _, f := range report.Findings {
			list := &harm
			switch {
			case f.Problem == operate.Unchecked && f.Kind == "broker":
				list = &unseen
			case f.Problem == operate.Overruled || f.Problem == operate.Disabled:
			case f.Problem == operate.Exposed && f.Kind == "broker" && f.Name != "replicas":
			default:
				continue // about queues that need not exist
			}
			text, _, _ := strings.Cut(f.Text, "; exempt it by a policy")
			if !said[text] {
				said[text], f.Text = true, text
				*list = append(*list, f.String())
			}
		}
	}
	switch {
	case len(harm) > 0:
		return Differs, several(harm, "\n")
	case len(unseen) > 0:
		return Unknown, several(unseen, "\n")
	}
	return OK, "none found"
}

// leftovers names what killed runs have left, with the commands that remove it.
func leftovers(b *bench) (Status, string) {
	if b.management == "" {
		return Unknown, noManagement
	}
	api, err := management.New(b.management, link.Config{AMQP: b.amqp}.TLSConfig())
	b.must(err)
	var commands []string
	for _, kind := range []string{"queues", "exchanges"} {
		names, err := api.Names(b.ctx, kind, b.vhost, scratch)
		if errors.Is(err, management.ErrNotFound) { // as 4.3 answers without permissions (F39)
			return Unknown, "the user needs permissions in the vhost, of which ^$ is enough"
		}
		b.must(err)
		for _, name := range names {
			switch {
			case !b.isOld(name):
			case kind == "queues":
				commands = append(commands, fmt.Sprintf("rabbitmqctl delete_queue --vhost %s %s",
					audit.ShellWord(b.vhost), audit.ShellWord(name)))
			default: // no command of rabbitmqctl deletes an exchange
				commands = append(commands, "curl -u USER -X DELETE "+audit.ShellWord(fmt.Sprintf(
					"%s/api/exchanges/%s/%s", api, url.PathEscape(b.vhost), url.PathEscape(name))))
			}
		}
	}
	if len(commands) > 0 {
		return Differs, "remove with: " + several(commands, "\n")
	}
	return OK, "none"
}

// isOld reports whether the name is of a run that has ended, by the time in the name.
func (e *examiner) isOld(name string) bool {
	text, _, _ := strings.Cut(strings.TrimPrefix(name, scratch), "-")
	began, err := time.Parse(stamp, text)
	return err == nil && time.Since(began) > e.lifetime
}
