package main

import (
	"encoding/xml"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCut(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"a", "b", "c"}, cut("\na\nb\nc\n", 1, 1),
		"one line is as long as the line that would replace it")
	require.Equal(t, []string{"a", "⋮  2 lines left out", "d"}, cut("a\nb\nc\nd\n", 1, 1))
}

func TestDrawIsXMLWithEveryLine(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"$ make demo", `a <b> & "c"`, "published 1  lost 0"},
		texts(t, draw("make demo", []string{`a <b> & "c"`, "published 1  lost 0"})))
}

// Given the picture in the README, then it says that nothing was lost and where lines are left out.
func TestDemoIsWhole(t *testing.T) {
	t.Parallel()
	picture, err := os.ReadFile("../../../docs/demo.svg")
	require.NoError(t, err)
	lines := texts(t, string(picture))
	require.Equal(t, "$ make demo", lines[0])
	require.Regexp(t, `^published (\d+)  delivered \d+  dead-lettered \d+  lost 0$`,
		lines[len(lines)-1])
	require.Contains(t, strings.Join(lines, "\n"), "lines left out")
}

// texts returns the lines of a picture.
func texts(t *testing.T, picture string) []string {
	t.Helper()
	var svg struct {
		Text []string `xml:"g>text"`
	}
	require.NoError(t, xml.Unmarshal([]byte(picture), &svg))
	return svg.Text
}
