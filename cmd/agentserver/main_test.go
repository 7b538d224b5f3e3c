package main

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// mostBytes is what the in-box binary may weigh.
const mostBytes = 9 << 20

func TestBinaryIsUnderNineMiB(t *testing.T) {
	program := filepath.Join(t.TempDir(), "agentserver")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	output, err := build.CombinedOutput()
	require.NoError(t, err, string(output))
	info, err := os.Stat(program)
	require.NoError(t, err)
	require.Less(t, info.Size(), int64(mostBytes))
	binary, err := elf.Open(program)
	require.NoError(t, err)
	defer binary.Close()
	for _, part := range binary.Progs {
		require.NotEqual(t, elf.PT_INTERP, part.Type, "it needs no loader: it is static")
	}

	output, err = exec.Command(program, "--host", "0.0.0.0").CombinedOutput()
	var failed *exec.ExitError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, 78, failed.ExitCode(), string(output))
}
