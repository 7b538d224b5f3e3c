package reclaimtree

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// count walks a directory: its entries, itself among them.
func count(t *testing.T, root string) (files, directories int, names string) {
	t.Helper()
	var all strings.Builder
	require.NoError(t, filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		require.NoError(t, err)
		name, err := filepath.Rel(root, path)
		require.NoError(t, err)
		all.WriteString(name + "\n")
		if entry.IsDir() {
			directories++
		} else {
			files++
		}
		return nil
	}))
	return files, directories, all.String()
}

func TestATreeHasItsShapeAndIsTheSameEachTime(t *testing.T) {
	first, err := Make(filepath.Join(t.TempDir(), "first"), Small)
	require.NoError(t, err)
	files, directories, names := count(t, first.Runtimes)
	require.Equal(t, Small.Conversations*Small.Files, files)
	require.Equal(t, Small.Conversations*Small.Directories, directories-1)
	second, err := Make(filepath.Join(t.TempDir(), "second"), Small)
	require.NoError(t, err)
	_, _, again := count(t, second.Runtimes)
	require.Equal(t, names, again)

	call := exec.Command("git", "ls-files", "-z", "--others", "--ignored", "--directory", "--exclude-standard")
	call.Dir = filepath.Join(first.Runtimes, first.IDs[1], "workspace")
	output, err := call.Output()
	require.NoError(t, err)
	require.ElementsMatch(t, []string{".env", "node_modules/", "notes/", "third_party/build/", ""}, strings.Split(string(output), "\x00"))
}
