package topology

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/millpond-go/millpond/internal/management"
)

const (
	// enoughReplicas outlive the loss of a node with a majority.
	enoughReplicas = 3
	// littleDisk is a limit under which a burst fills the disk before the alarm has
	// stopped those who publish. The broker's default is 50 MB.
	littleDisk = 1 << 30
)

// settingsOfBroker names what the nodes show that makes less of the promise. What only
// matters to several nodes is not named on a single one.
func (v *verifier) settingsOfBroker() {
	nodes, ok := v.manager.nodes()
	if !ok {
		return
	}
	for _, n := range nodes {
		if n.MemoryAlarm {
			v.find(Warning, Exposed, "broker", n.Name, "its memory alarm stops all publishing, so that failed messages are held unacked: free memory, or raise vm_memory_high_watermark")
		}
		if n.DiskAlarm {
			v.find(Warning, Exposed, "broker", n.Name, "its disk alarm stops all publishing, so that failed messages are held unacked: free disk space, or lower disk_free_limit")
		}
	}
	if len(nodes) < 2 {
		return
	}
	for _, n := range nodes {
		if limit, known := n.DiskFreeLimit.(float64); known && limit < littleDisk {
			v.find(Warning, Exposed, "broker", n.Name, "publishing is stopped only when %.0f MB of its disk are left, and a disk that is full ends the node: set disk_free_limit.absolute = 2GB or more in rabbitmq.conf", limit/1e6)
		}
	}
	v.fewReplicas(nodes)
}

// fewReplicas names queues of the plan that are on fewer nodes than they could be, in one
// finding for each type: Levels has 32 wait queues.
func (v *verifier) fewReplicas(nodes []management.Node) {
	want := min(enoughReplicas, len(nodes))
	var classic, quorum []string
	missing := ""
	for _, q := range v.plan.members() {
		switch known, members := v.known[q.Name], v.replicas[q.Name]; {
		case known.kind == Classic:
			classic = append(classic, q.Name)
		case known.kind == Quorum && len(members) > 0 && len(members) < want:
			quorum = append(quorum, q.Name)
			if i := slices.IndexFunc(nodes, func(n management.Node) bool { return !slices.Contains(members, n.Name) }); missing == "" && i >= 0 {
				missing = nodes[i].Name
			}
		}
	}
	if len(classic) > 0 {
		v.find(Warning, Exposed, "broker", "replicas", "each of these classic queues is on one node of %d, and out of reach while that node is away: %s; a quorum queue is on several", len(nodes), several(classic))
	}
	if len(quorum) > 0 {
		v.find(Warning, Exposed, "broker", "replicas", "each of these quorum queues is on fewer than %d nodes of %d, and loses its majority sooner: %s; for each node that is missing run: rabbitmq-queues grow %s all --vhost-pattern %s --queue-pattern %s",
			want, len(nodes), several(quorum), shellWord(missing), shellWord("^"+regexp.QuoteMeta(v.vhost)+"$"), shellWord(namesPattern(quorum)))
	}
}

// several names a few of many.
func several(names []string) string {
	const most = 3
	text := ""
	if len(names) > most {
		text = fmt.Sprintf(" and %d more", len(names)-most)
		names = names[:most]
	}
	return `"` + strings.Join(names, `", "`) + `"` + text
}

// namesPattern matches these names and no other.
func namesPattern(names []string) string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = regexp.QuoteMeta(name)
	}
	return "^(" + strings.Join(quoted, "|") + ")$"
}
