package middleware_test

import (
	"os/exec"
	"strings"
	"testing"
)

// The house's rule: topology → middleware → backoff, and AMQP in topology alone.
func TestImportsRunOneWay(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skipf("needs the go command: %v", err)
	}
	const module = "github.com/millpond-go/millpond/"
	for _, rule := range []struct {
		pkg       string
		forbidden []string
	}{
		{"backoff", []string{"amqp", module + "middleware", module + "topology", "watermill"}},
		{"internal/hold", []string{"amqp", module + "middleware", module + "topology", "watermill"}},
		{"middleware", []string{"amqp", module + "topology", module + "internal/publisher", module + "internal/wire"}},
		{"middleware/middlewaretest", []string{"amqp", module + "topology"}},
	} {
		deps, err := exec.Command("go", "list", "-deps", module+rule.pkg).Output()
		if err != nil {
			t.Fatalf("go list -deps %s: %v", rule.pkg, err)
		}
		for dep := range strings.Lines(string(deps)) {
			for _, bad := range rule.forbidden {
				if strings.Contains(dep, bad) {
					t.Errorf("%s imports %s", rule.pkg, strings.TrimSpace(dep))
				}
			}
		}
	}
}
