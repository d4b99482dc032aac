package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestEventsSurviveTheLog(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "events")
	log, err := openLog(name)
	require.NoError(t, err)
	defer log.close()
	reading, err := readLog(name)
	require.NoError(t, err)
	defer reading.close()
	events := []event{
		{kind: begun, at: time.Unix(5, 6), instance: "i1", call: 7, msg: id{8, 9}, attempt: 1},
		{
			kind: ended, at: time.Unix(1, 0), instance: "i12345", call: 1 << 40, msg: id{1 << 20, 1 << 30},
			attempt: 6, epoch: 1 << 50, outcome: gaveUp, over: true,
		},
		{kind: struck, at: time.Unix(2, 0), fault: cutActive, instance: "i2"},
		{kind: struck, at: time.Unix(2, 0), fault: killActive},
	}
	for _, e := range events {
		require.NoError(t, log.append(e))
	}
	got, err := reading.next()
	require.NoError(t, err)
	require.Equal(t, events, got)

	// Half a line is not read before its other half.
	line := fmt.Sprintf("%-*s\n", eventSize-1, "begin 5 i1 7 8 9 1 0 - false -")
	half, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	defer half.Close()
	for i, part := range []string{line[:20], line[20:]} {
		_, err = half.WriteString(part)
		require.NoError(t, err)
		got, err = reading.next()
		require.NoError(t, err)
		require.Len(t, got, i)
	}

	_, err = half.WriteString("nonsense\n")
	require.NoError(t, err)
	_, err = reading.next()
	require.ErrorIs(t, err, errEvent)
}
