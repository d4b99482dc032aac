package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLinesStandAboveTheProgressLine(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := screen{out: &out, live: true}
	s.print("before\n")
	stop := s.follow(func() string { return "1 of 2" })
	s.print("line\n")
	stop()
	s.print("after\n")
	const progress = "\x1b[?7l1 of 2\x1b[?7h"
	// It may have been drawn many times in between.
	got := strings.ReplaceAll(out.String(), "\r\x1b[K"+progress, "")
	require.Equal(t, "before\n\r\x1b[Kline\n"+progress+"\r\x1b[Kafter\n", got)
}

func TestNoProgressLineElsewhere(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := screen{out: &out, live: isTerminal(&out)}
	stop := s.follow(func() string { return "1 of 2" })
	s.print("%s\n", "line")
	stop()
	require.Equal(t, "line\n", out.String())

	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	defer file.Close()
	require.False(t, isTerminal(file))
}
