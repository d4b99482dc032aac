package doctor_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology/operate/doctor"
)

// killed tells this test binary to be the run that is killed: the URL of its broker.
const killed = "MILLPOND_TEST_DOCTOR"

func TestMain(m *testing.M) {
	if url := os.Getenv(killed); url != "" {
		for { // until it is killed
			_, err := doctor.Examine(context.Background(), url, doctor.WithLifetime(time.Hour))
			fmt.Fprintln(os.Stderr, "not killed in time:", err)
		}
	}
	testbroker.Main(m, func() error { return goleak.Find() })
}
