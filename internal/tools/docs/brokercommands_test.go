package docs_test

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// brokerCommand runs a command of a page on a node.
func brokerCommand(t *testing.T, node *testbroker.Node, c command) error {
	t.Helper()
	words := wordsOf(strings.ReplaceAll(c.text, "rabbit@host3", node.Name()))
	_, err := node.RunTool(t.Context(), words[0], words[1:]...)
	return err
}

// Every rabbitmqctl of a page is taken by a broker, with the vhosts and users that it names.
// docs/broker-settings.md has a test that also looks at what they have done.
func TestBrokerCommandsOfPages(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	node.Grant(t, testbroker.Everything("shop", "orders-service"))
	ran, granted := 0, false
	for _, c := range allCommands(t) {
		// Each starts an Erlang. TestSecurityDocumentIsTrue knows the patterns of all.
		grants := strings.HasPrefix(c.text, "rabbitmqctl set_permissions -p shop orders-service ")
		if test, _ := runner(c); test != "TestBrokerCommandsOfPages" || granted && grants {
			continue
		}
		granted = granted || grants
		ran++
		assert.NoError(t, brokerCommand(t, node, c), c)
	}
	require.Greater(t, ran, 2)
	require.Error(t, brokerCommand(t, node, command{text: "rabbitmqctl set_permission -p shop a b c"}))
}

const reconciliation = "quorum_queue.continuous_membership_reconciliation"

// settingsInEffect holds the node's own value, as Erlang, of each key of rabbitmq.conf that
// docs/broker-settings.md sets. %s is the value on the page.
var settingsInEffect = map[string]string{
	"cluster_partition_handling":          `{cluster_partition_handling, %s}`,
	"consumer_timeout":                    `{consumer_timeout, %s}`,
	"default_queue_type":                  `{default_queue_type, rabbit_%s_queue}`,
	"disk_free_limit.absolute":            `{disk_free_limit, "%s"}`,
	"max_message_size":                    `{max_message_size, %s}`,
	"vm_memory_high_watermark.relative":   `{vm_memory_high_watermark, %s}`,
	reconciliation + ".enabled":           `{quorum_membership_reconciliation_enabled, %s}`,
	reconciliation + ".target_group_size": `{quorum_membership_reconciliation_target_group_size, %s}`,
}

// Given a node with the rabbitmq.conf and the advanced.config of docs/broker-settings.md, then it
// starts, has their values, and takes the page's commands. A snippet whose fence ends in
// "from 4.0" is left out on an older version.
func TestRecommendedBrokerSettings(t *testing.T) {
	t.Parallel()
	version := testbroker.InstalledVersion(t)
	snippets := map[string]string{}
	for _, b := range blocks(read(t, "docs/broker-settings.md")) {
		kind, from, _ := strings.Cut(b.kind, " from ")
		if slices.Compare(numbers(t, version), numbers(t, from)) >= 0 {
			snippets[kind] += b.text
		}
	}
	conf := strings.Split(strings.TrimSpace(snippets["ini rabbitmq.conf"]), "\n")
	advanced := strings.TrimSpace(snippets["erlang advanced.config"])
	commands := strings.Split(strings.TrimSpace(snippets["sh"]), "\n")
	require.Greater(t, len(conf), 3)
	require.Greater(t, len(commands), 5)

	node := testbroker.Private(t,
		testbroker.WithConfig(conf...), testbroker.WithAdvancedConfig(advanced))
	var want []string
	for _, line := range conf {
		key, value, _ := strings.Cut(line, " = ")
		require.Contains(t, settingsInEffect, key)
		want = append(want, fmt.Sprintf(settingsInEffect[key], value))
	}
	require.Equal(t, "[]\n", node.Ctl(t, "eval", fmt.Sprintf(`
		{ok, Tokens, _} = erl_scan:string(%q),
		{ok, Advanced} = erl_parse:parse_term(Tokens),
		[{App, Key, application:get_env(App, Key)} ||
			{App, Pairs} <- [{rabbit, [%s]} | Advanced], {Key, Value} <- Pairs,
			application:get_env(App, Key) =/= {ok, Value}].`, advanced, strings.Join(want, ", "))),
		"settings of the page that are not in effect")

	for _, line := range commands {
		if !strings.HasPrefix(line, "#") {
			require.NoError(t, brokerCommand(t, node, command{text: line}), line)
		}
	}
	vhosts := node.Ctl(t, "list_vhosts", "name", "default_queue_type")
	require.Contains(t, "\n"+vhosts, "\nshop\tquorum\n")
	policies := node.Ctl(t, "list_policies", "--vhost", "shop")
	require.Contains(t, policies, `{"delivery-limit":2147483647}`)
}

// numbers returns the numbers of a version such as 4.0.5, and none for "".
func numbers(t *testing.T, version string) (found []int) {
	t.Helper()
	for _, text := range regexp.MustCompile(`\d+`).FindAllString(version, -1) {
		number, err := strconv.Atoi(text)
		require.NoError(t, err)
		found = append(found, number)
	}
	return found
}
