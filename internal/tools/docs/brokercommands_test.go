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

// newerCommands are in no older rabbitmqctl, with the version that has them.
var newerCommands = map[string]string{"update_vhost_metadata": "3.13"}

// Every rabbitmqctl of a page is taken by a broker: those in blocks run, on a node with the vhosts
// and users that they name; of those between backticks the name is looked up.
// docs/broker-settings.md has a test that also looks at what they have done.
func TestBrokerCommandsOfPages(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	setUp := func(args ...string) { _, _ = node.RunCtl(t.Context(), args...) } // or it is there
	setUp("add_vhost", "shop")
	setUp("add_user", "orders-service", "a password")
	setUp("add_user", "millpond-verify", "a password")
	list, err := node.RunCtl(t.Context(), "help")
	require.NoError(t, err)
	known := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^ +([a-z_]+)`).FindAllStringSubmatch(list, -1) {
		known[m[1]] = true
	}
	require.Greater(t, len(known), 50)

	named := 0
	for _, p := range pagesOf(t) {
		for _, c := range inlineCommands(p, "rabbitmqctl") {
			words := strings.Fields(c.text)
			if len(words) == 1 {
				continue
			}
			from := numbers(t, newerCommands[words[1]])
			if slices.Compare(numbers(t, node.Version()), from) < 0 {
				continue
			}
			named++
			assert.True(t, known[words[1]], "%s\nrabbitmqctl has no command %s", c, words[1])
		}
	}
	require.Greater(t, named, 5)

	run := func(c command) error {
		var words []string
		for _, word := range wordsOf(c.text) {
			words = append(words, strings.ReplaceAll(word, "rabbit@host3", node.Name()))
		}
		_, err := node.RunTool(t.Context(), words[0], words[1:]...)
		return err
	}
	ran, granted := 0, false
	for _, c := range allCommands(t) {
		if test, _ := runner(c); test != "TestBrokerCommandsOfPages" {
			continue
		}
		// Each starts an Erlang. TestSecurityDocumentIsTrue knows the patterns of all.
		grants := strings.HasPrefix(c.text, "rabbitmqctl set_permissions -p shop orders-service ")
		if granted && grants {
			continue
		}
		granted = granted || grants
		ran++
		assert.NoError(t, run(c), c)
	}
	require.Positive(t, ran)
	for _, wrong := range []string{
		"rabbitmqctl set_permission -p shop orders-service '^$' '^$' '^$'",
		"rabbitmqctl set_permissions -p shop orders-service '^$' '^$'",
		`rabbitmqctl set_policy --vhost shop --applies-to queues 'a' '^a$' '{"max-length":1}'`,
		`rabbitmqctl set_policy --vhost shop --apply-to queues 'a' '^a$' '{"delivery-limits":1}'`,
	} {
		require.Error(t, run(command{text: wrong}), wrong)
	}
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
		if strings.HasPrefix(line, "#") {
			continue
		}
		var words []string
		for _, word := range regexp.MustCompile(`'([^']*)'|(\S+)`).FindAllStringSubmatch(line, -1) {
			words = append(words, strings.ReplaceAll(word[1]+word[2], "rabbit@host3", node.Name()))
		}
		_, err := node.RunTool(t.Context(), words[0], words[1:]...)
		require.NoError(t, err, line)
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
