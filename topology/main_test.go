package topology_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/internal/testbench"
)

func TestMain(m *testing.M) {
	testbench.Main(m, endRuledNode, func() error { return goleak.Find() })
}
