package e2e_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

func TestMain(m *testing.M) {
	testbroker.Main(m, common.end, impatient.end, func() error { return goleak.Find() })
}
