package chaos

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTailReadsWhatIsComplete(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "log")
	reader := tail{consumer: "c1", name: name}
	got, err := reader.read()
	require.NoError(t, err)
	assert.Empty(t, got, "a consumer that has not begun")

	first := Attempt{
		Consumer: "c1", Began: time.Unix(0, 3), At: time.Unix(0, 17),
		N: 3, Attempt: 2, Outcome: Panicked, Redelivered: true, Aside: true, Nonce: "ab-1",
	}
	second := Attempt{
		Consumer: "c1", Began: time.Unix(4, 0), At: time.Unix(5, 0), N: 4, Attempt: 1, Outcome: Handled,
	}
	require.NoError(t, os.WriteFile(name, []byte(first.line()+second.line()[:9]), 0o600))
	got, err = reader.read()
	require.NoError(t, err)
	assert.Equal(t, []Attempt{first}, got)

	require.NoError(t, os.WriteFile(name, []byte(first.line()+second.line()), 0o600))
	got, err = reader.read()
	require.NoError(t, err)
	assert.Equal(t, []Attempt{second}, got)

	require.NoError(t, os.WriteFile(name, []byte(first.line()+second.line()+"what is this\n"), 0o600))
	_, err = reader.read()
	assert.ErrorContains(t, err, "what is this")

	_, err = parseLine("1 2 three 4 ok true true -")
	assert.ErrorContains(t, err, "three")
}
