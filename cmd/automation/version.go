package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"automation/migrations"
)

// version is set by the linker in releases (-X main.version=…).
var version = "dev"

// sdkVersion is the openhands-sdk that boxes should install (GET /sdk-version).
const sdkVersion = "1.58.1"

// commit is the revision this program was built from, or "".
func commit() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return ""
}

func newVersion(io Streams) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program and of its schema",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			switch output {
			case "json":
				return json.NewEncoder(io.Out).Encode(map[string]any{
					"version": version, "commit": commit(), "go": runtime.Version(), "schema": migrations.Latest(),
				})
			case "table":
				_, err := fmt.Fprintf(io.Out, "automation %s (schema %d, %s)\n", version, migrations.Latest(), runtime.Version())
				return err
			}
			return usageError{fmt.Errorf("--output %q: want table or json", output)}
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return c
}
