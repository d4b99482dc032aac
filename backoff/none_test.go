package backoff_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/millpond-go/millpond/backoff"
)

func TestNone(t *testing.T) {
	t.Parallel()
	requireSeries(t, backoff.None{})
	assert.NoError(t, backoff.Validate(backoff.None{}))
	assert.NoError(t, backoff.CheckEnd(backoff.None{}))
	assert.Empty(t, backoff.Remarks(backoff.None{}))
	delays, known := backoff.Delays(backoff.None{})
	assert.True(t, known)
	assert.NotNil(t, delays)
	assert.Empty(t, delays)
}

func ExampleNone() {
	fmt.Println(backoff.None{}.Delay(backoff.Failure{Count: 1}))
	// Output:
	// 0s false
}
