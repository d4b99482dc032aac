package main

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// `make model` searches more. Here the model moves, and a defect is found.
func TestTheModelMovesAndADefectIsFound(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"spin", "gcc"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("needs spin and gcc: make model")
		}
	}
	require.NoError(t, plant(modelDir(t), "MUT_SHUTDOWN_COUNTS"))
	require.Error(t, plant(modelDir(t), "MUT_THAT_IS_NOT_THERE"), "nothing was planted")
}

// Each function that a step of the model names is in the file that stands before it, and no file is
// named without a function.
func TestTheStepsNameFunctions(t *testing.T) {
	t.Parallel()
	named := regexp.MustCompile(`([\w/]+\.go): (\w+(?:, \w+)*)`)
	steps := named.FindAllStringSubmatch(string(source), -1)
	assert.Len(t, steps, strings.Count(string(source), ".go"))
	for _, step := range steps {
		code, err := os.ReadFile("../../" + step[1])
		require.NoError(t, err)
		for name := range strings.SplitSeq(step[2], ", ") {
			function := regexp.MustCompile(`(?m)^func (\(.*?\) )?` + name + `\(`)
			assert.True(t, function.Match(code), "%s has no function %s", step[1], name)
		}
	}
}

func TestAnErrorIsRead(t *testing.T) {
	t.Parallel()
	r, err := parse("pan:1: assertion violated (n==1) (at depth 17)\n" +
		"Warning: Search not completed\nState-vector 92 byte, depth reached 18, errors: 1\n" +
		"     1935 states, stored\n")
	require.NoError(t, err)
	assert.Equal(t, 1, r.errors)
	assert.Equal(t, 17, r.depth)
	assert.Equal(t, 1935, r.states)
	assert.False(t, r.complete)
	_, err = parse("Segmentation fault\n")
	require.Error(t, err)
}

func modelDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, write(dir))
	return dir
}
