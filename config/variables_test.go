package config_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"automation/config"
)

//go:generate env UPDATE_DOCS=1 go test -run TestOperationsListsEveryVariable .

// The place of the table in the document.
const (
	operations = "../docs/OPERATIONS.md"
	tableBegin = "<!-- variables: made by make generate -->\n"
	tableEnd   = "<!-- end of variables -->\n"
)

func TestOperationsListsEveryVariable(t *testing.T) {
	var table strings.Builder
	table.WriteString("| variable | default | values | meaning |\n|---|---|---|---|\n")
	for _, v := range config.Variables() {
		require.NotEmpty(t, v.Meaning, "%s needs its meaning in variables.go", v.Name)
		name := "`" + strings.Join(append([]string{v.Name}, v.Also...), "`, `") + "`"
		if v.File {
			name += ", `" + v.Name + "_FILE`"
		}
		fmt.Fprintf(&table, "| %s | %s | %s | %s |\n", name, v.Default, v.Accepts, v.Meaning)
	}
	raw, err := os.ReadFile(operations)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(raw), tableBegin)
	require.True(t, found, "the document has the place of the table")
	inside, after, found := strings.Cut(rest, tableEnd)
	require.True(t, found, "the table has an end")
	if os.Getenv("UPDATE_DOCS") != "" {
		require.NoError(t, os.WriteFile(operations, []byte(before+tableBegin+table.String()+tableEnd+after), 0o644))
		return
	}
	require.Equal(t, table.String(), inside, "run make generate")
}
