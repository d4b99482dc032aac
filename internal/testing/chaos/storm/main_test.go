package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestBadArgumentsStartNothing(t *testing.T) {
	t.Parallel()
	for _, args := range []string{
		"-minutes 0", "-minutes -1", "-nodes 0", "-consumers 0", "-rate 0", "-timer -1s",
		"-strategy nothing", "-bug nothing", "-only nothing", "-seed x",
	} {
		assert.Equal(t, 2, run(strings.Fields(args)), args)
	}
}
