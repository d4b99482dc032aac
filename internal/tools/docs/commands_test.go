package docs_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// command is a line that a page shows for a shell.
type command struct {
	page, text string
	line       int
	output     string // that the page shows below it, in a console block
}

func (c command) String() string { return fmt.Sprintf("%s:%d: %s", c.page, c.line, c.text) }

var (
	remark     = regexp.MustCompile(`(^|\s)#\s[^'"]*$`)
	fromAClone = regexp.MustCompile(`\bgo run (-C \S+ )?\./cmd/millpond\b`)
)

// commandsOf returns the commands of a page. In a block of sh each line is one, in a block of
// console each line behind a prompt; the other lines are its output. A line that ends in \
// goes on in the next.
func commandsOf(p *page) (found []command) {
	for _, b := range p.blocks {
		if !slices.Contains([]string{"sh", "bash", "console"}, b.language()) {
			continue
		}
		joined, at := "", 0
		for i, line := range strings.Split(strings.TrimSuffix(b.text, "\n"), "\n") {
			prompt := strings.HasPrefix(line, "$ ")
			if b.language() == "console" && !prompt && joined == "" {
				if len(found) > 0 {
					found[len(found)-1].output += line + "\n"
				}
				continue
			}
			if joined == "" {
				at = b.line + 1 + i
			}
			before, goesOn := strings.CutSuffix(strings.TrimPrefix(line, "$ "), `\`)
			joined += before
			if goesOn {
				continue
			}
			text := strings.TrimSpace(remark.ReplaceAllString(joined, ""))
			joined = ""
			if text != "" && text[0] != '#' {
				found = append(found, command{page: p.path, line: at, text: text})
			}
		}
	}
	return found
}

// allCommands returns the commands of every page, in order.
func allCommands(t *testing.T) (found []command) {
	t.Helper()
	pages := pagesOf(t)
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		found = append(found, commandsOf(pages[name])...)
	}
	require.Greater(t, len(found), 60)
	return found
}

// runners are the tests that run the commands of pages. A command is a beginning of words; the
// first that fits counts. on is the page whose commands of this kind the test runs, "" is each.
var runners = []struct{ begins, on, test string }{
	{"", gettingStarted, "TestGettingStarted"}, // the whole page
	{"millpond", "", "TestToolCommandsOfPages"},
	{`eval "$(millpond completion`, "", "TestToolCommandsOfPages"},
	{"export AMQP_URL=", "", "TestToolCommandsOfPages"},
	{"export MILLPOND_MANAGEMENT_URL=", "", "TestToolCommandsOfPages"},
	{"rabbitmqctl", "docs/broker-settings.md", "TestRecommendedBrokerSettings"},
	{"rabbitmq-queues", "docs/broker-settings.md", "TestRecommendedBrokerSettings"},
	{"rabbitmqctl", "", "TestBrokerCommandsOfPages"},
	{"rabbitmq-queues", "", "TestBrokerCommandsOfPages"},
	{"go install ./cmd/millpond", "", "TestToolCommandsOfPages"}, // which builds it
	{
		"go run ./internal/tools/withbroker -- go run ./examples/adopt", "",
		"TestQueueGainsRetriesAndLosesThemAgain",
	},
	{"go mod edit -replace=github.com/millpond-go/", "", "TestMetricsAndTracingInstallFromAClone"},
	{"make demo", "", "TestDemoLosesNothing"},
	{"make", "", "TestMakeTargetsOfPagesAreThere"}, // .ci/run runs make itself
	{"go get github.com/millpond-go/millpond", "", "TestInstallCommandsOfPages"},
	{"go install github.com/millpond-go/millpond", "", "TestInstallCommandsOfPages"},
	{"go mod", "README.md", "TestGettingStarted"}, // whose page has them, too
	{"go mod tidy", "docs/monitoring.md", "TestMetricsAndTracingInstallFromAClone"},
}

// notRun are commands that no test can run, each with the reason.
var notRun = []struct{ begins, reason string }{
	{
		"rabbitmq-plugins enable rabbitmq_prometheus",
		"writes into the installation; TestBrokerAlerts enables the plugin in its own node",
	},
	{"docker run", "needs Docker and the registry of its images"},
	{
		"go run -C ../millpond ./internal/tools/withbroker --",
		"starts a broker beside the test's own; TestMain of withbroker's tests is the same program",
	},
}

// secretArgument is a password in an argument, which every user of the machine sees.
var secretArgument = regexp.MustCompile(
	`\W--?[a-z-]+[ =]['"]?\w+://[^\s/:@]+:[^\s/@]+@|` +
		`\b(add_user|change_password) \S+ [^\s|]|curl .*-u \S+:`)

// No page puts a password into an argument: the tool reads URLs from its environment.
func TestDocumentsPutNoPasswordIntoAnArgument(t *testing.T) {
	t.Parallel()
	for name, p := range pagesOf(t) {
		for _, c := range commandsOf(p) {
			assert.NotRegexp(t, secretArgument, c.text, c)
		}
		assert.NotRegexp(t, secretArgument, strings.Join(p.prose, "\n"), name)
	}
}

// begins reports whether a command begins with these words.
func begins(text, words string) bool {
	rest, found := strings.CutPrefix(text, words)
	return found && (rest == "" || words == "" || rest[0] == ' ' || !isWord(words[len(words)-1]))
}

func isWord(c byte) bool { return c == '-' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' }

// runner returns the test that runs a command, or else the reason why none does.
func runner(c command) (test, reason string) {
	for _, n := range notRun {
		if begins(c.text, n.begins) {
			return "", n.reason
		}
	}
	text := fromAClone.ReplaceAllString(c.text, "millpond")
	for _, r := range runners {
		if begins(text, r.begins) && (r.on == "" || r.on == c.page) {
			return r.test, ""
		}
	}
	return "", ""
}

// Every command of every page is run by a test, or no test can run it for a reason in this file.
func TestCommandsOfDocumentsAreRun(t *testing.T) {
	t.Parallel()
	there := readSource(t).tests
	for _, c := range allCommands(t) {
		switch test, reason := runner(c); {
		case test != "" && !there[test]:
			t.Errorf("%s\nis run by %s, which is in no file", c, test)
		case test == "" && reason == "":
			t.Errorf("%s\nno test runs it: run it in one, or say in this file why none can", c)
		case test == "TestGettingStarted":
			assert.Contains(t, read(t, gettingStarted), "\n"+c.text+"\n", "%s", c)
		}
	}
	for _, p := range pagesOf(t) {
		for _, b := range p.blocks {
			assert.False(t, strings.HasPrefix(b.text, "$ ") && b.language() != "console",
				"%s:%d: a prompt in a fence of %q: call it console", p.path, b.line, b.kind)
		}
	}
}

// inlineCommands returns the commands that stand between backticks in the text of a page.
func inlineCommands(p *page, program string) (found []command) {
	for i, line := range p.prose {
		for _, c := range code.FindAllString(line, -1) {
			if c = strings.Trim(c, "` "); begins(c, program) {
				found = append(found, command{page: p.path, line: i + 1, text: c})
			}
		}
	}
	return found
}

var (
	makeTarget   = regexp.MustCompile(`(?m)^([a-z-]+):`)
	makeVariable = regexp.MustCompile(`\b([A-Z_]{2,})=`)
)

// Every target of make that a page names is in the Makefile, with its variables.
func TestMakeTargetsOfPagesAreThere(t *testing.T) {
	t.Parallel()
	makefile := read(t, "Makefile")
	targets := map[string]bool{}
	for _, m := range makeTarget.FindAllStringSubmatch(makefile, -1) {
		targets[m[1]] = true
	}
	all := allCommands(t)
	for _, p := range pagesOf(t) {
		all = append(all, inlineCommands(p, "make")...)
	}
	checked := 0
	for _, c := range all {
		words := strings.Fields(c.text)
		if words[0] != "make" || len(words) < 2 || words[1] == "the" {
			continue
		}
		checked++
		assert.True(t, targets[words[1]], "%s\nmake has no target %q", c, words[1])
		for _, m := range makeVariable.FindAllStringSubmatch(c.text, -1) {
			assert.True(t, strings.Contains(makefile, "$("+m[1]+")"),
				"%s\nthe Makefile has no variable %s", c, m[1])
		}
	}
	require.Greater(t, checked, 10)
}

var quotedWord = regexp.MustCompile(`'([^']*)'|"([^"]*)"|(\S+)`)

// wordsOf splits a command as a shell does, without its substitutions.
func wordsOf(text string) (words []string) {
	for _, m := range quotedWord.FindAllStringSubmatch(text, -1) {
		words = append(words, m[1]+m[2]+m[3])
	}
	return words
}
