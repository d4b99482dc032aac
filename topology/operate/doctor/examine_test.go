package doctor_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology/operate/doctor"
)

func TestDoctorTry(t *testing.T) {
	t.Parallel()
	r, err := doctor.Examine(t.Context(), testbroker.URL(t))
	require.NoError(t, err)
	t.Log(r.Took, r.Product, r.Version)
	for _, c := range r.Checks {
		t.Logf("%-8s %-20s %s", c.Status, c.Name, c.Seen)
	}
	require.Empty(t, r.Unsafe())
}
