package docs_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

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
			if !known[words[1]] {
				t.Errorf("%s\nrabbitmqctl has no command %s", c, words[1])
			}
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
		if err := run(c); err != nil {
			t.Errorf("%s\n%v", c, err)
		}
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
