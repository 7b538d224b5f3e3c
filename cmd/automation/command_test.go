package main

import (
	"bytes"
	"context"
	"io"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAnInterruptedCommandSaysSo(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	var said bytes.Buffer
	code := Main(ctx, []string{"runs", "ls"}, Streams{
		Env: []string{"HOME=" + t.TempDir(), "AUTOMATION_URL=http://127.0.0.1:1", "AUTOMATION_TOKEN=k"}, Out: io.Discard, Err: &said,
	})
	require.Equal(t, exitUsage, code)
	require.Equal(t, "automation: interrupted\n", said.String())
}

// fullDisk is one without room.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

func TestWhatCannotBeWrittenIsAFailure(t *testing.T) {
	for _, args := range [][]string{{"doctor"}, {"doctor", "-o", "json"}, {"version"}, {"version", "-o", "json"}, {"completion", "bash"}} {
		code := Main(t.Context(), args, Streams{Env: []string{"HOME=" + t.TempDir()}, Out: fullDisk{}, Err: io.Discard})
		require.Equal(t, exitFailed, code, "%v", args)
	}
}
