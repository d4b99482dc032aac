package main

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRun(t *testing.T) {
	t.Parallel()
	const script = `echo "withbroker: RabbitMQ 4.0.5 answers on amqp://127.0.0.1" >&2
		echo "BROKER is $BROKER, $AMQP_URL$MILLPOND_BROKER"
		echo '{"Passed":7,"Failed":1,"Skipped":2}' > $GOTEST_COUNTS; exit 1`
	var out bytes.Buffer
	o, err := run("4.0", []string{"sh", "-c", script}, &out)
	require.NoError(t, err)
	require.Error(t, o.exit)
	assert.Equal(t, "4.0.5", o.version)
	assert.Equal(t, counts{Passed: 7, Failed: 1, Skipped: 2}, o.tests)
	assert.Equal(t, "BROKER is 4.0, 4.0\n", out.String())

	_, err = run("4.0", []string{"true"}, &out)
	require.ErrorContains(t, err, "did not write its number of tests")
}

func TestSummary(t *testing.T) {
	t.Parallel()
	good := outcome{name: "x", version: "3.10.8", tests: counts{Passed: 7}, took: time.Minute}
	bad := outcome{
		name: "4.0", version: "4.0.5", exit: errors.New("exit status 2"),
		tests: counts{Passed: 6, Failed: 1}, took: time.Second,
	}
	absent := outcome{name: "4.3", exit: errors.New("exit status 2"), took: time.Second}
	for want, all := range map[string][]outcome{
		`RabbitMQ  result                    tests passed  failed  skipped  time
3.10.8    ok                        7             0       0        1m0s
4.0.5     FAILED                    6             1       0        1s
4.3       CANNOT BE HAD, see above  0             0       0        1s
`: {good, bad, absent},
		`RabbitMQ  result   tests passed  failed  skipped  time
3.10.8    ok       7             0       0        1m0s
4.0       NOT RUN                                 
4.3       NOT RUN                                 
`: {good},
	} {
		var out bytes.Buffer
		assert.False(t, summary(&out, all))
		assert.Equal(t, want, out.String())
	}
	var out bytes.Buffer
	assert.True(t, summary(&out, []outcome{good, good, good}))
}
