package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"automation/config"
	"automation/migrations"
)

func newMigrate(io Streams) *cobra.Command {
	c := &cobra.Command{Use: "migrate", Short: "Move the schema of the database: up, down, status, repair"}
	c.AddCommand(newMigrateUp(io), newMigrateDown(io), newMigrateStatus(io), newMigrateRepair(io))
	c.Args = cobra.NoArgs
	c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	return c
}

// database returns the configured database; only problems that concern it matter here.
func (io Streams) database() (config.Database, error) {
	cfg, err := config.Load(io.Env)
	return cfg.Database, err
}

func newMigrateUp(io Streams) *cobra.Command {
	return &cobra.Command{
		Use: "up", Short: "Bring the schema to the newest version", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			db, err := io.database()
			if err != nil {
				return err
			}
			if err := prepareDatabase(c.Context(), db); err != nil {
				return err
			}
			if err := migrations.Up(c.Context(), db.DSN.Reveal()); err != nil {
				return err
			}
			_, err = fmt.Fprintf(io.Out, "schema at version %d\n", migrations.Latest())
			return err
		},
	}
}

func newMigrateDown(io Streams) *cobra.Command {
	var steps, to uint
	var yes bool
	c := &cobra.Command{
		Use: "down", Short: "Take the schema back; what the steps had added is lost", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if !yes {
				return usageError{errors.New("down removes columns and tables with what is in them: add --yes to do it")}
			}
			db, err := io.database()
			if err != nil {
				return err
			}
			state, err := migrations.Status(c.Context(), db.DSN.Reveal())
			if err != nil {
				return err
			}
			target := to
			if !c.Flags().Changed("to") {
				if steps == 0 || steps > state.Version {
					return usageError{fmt.Errorf("--steps %d: the schema is at version %d", steps, state.Version)}
				}
				target = state.Version - steps
			}
			if err := migrations.Down(c.Context(), db.DSN.Reveal(), target); err != nil {
				return err
			}
			_, err = fmt.Fprintf(io.Out, "schema at version %d\n", target)
			return err
		},
	}
	c.Flags().UintVar(&steps, "steps", 1, "how many versions to go back")
	c.Flags().UintVar(&to, "to", 0, "the version to go back to")
	c.Flags().BoolVar(&yes, "yes", false, "really do it")
	c.MarkFlagsMutuallyExclusive("steps", "to")
	return c
}

func newMigrateStatus(io Streams) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "status", Short: "Say where the schema stands; changes nothing", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			db, err := io.database()
			if err != nil {
				return err
			}
			state, err := migrations.Status(c.Context(), db.DSN.Reveal())
			if err != nil {
				return err
			}
			switch output {
			case "json":
				err = json.NewEncoder(io.Out).Encode(map[string]any{
					"version": state.Version, "latest": state.Latest, "dirty": state.Dirty, "foreign": state.Foreign,
				})
			case "table":
				_, err = fmt.Fprintf(io.Out, "schema at version %d of %d\n", state.Version, state.Latest)
			default:
				return usageError{fmt.Errorf("--output %q: want table or json", output)}
			}
			return errors.Join(err, state.Err())
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return c
}

func newMigrateRepair(io Streams) *cobra.Command {
	return &cobra.Command{
		Use: "repair", Short: "Take the mark of a migration that was cut short off the database", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			db, err := io.database()
			if err != nil {
				return err
			}
			state, err := migrations.Repair(c.Context(), db.DSN.Reveal())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(io.Out, "schema at version %d of %d\n", state.Version, state.Latest)
			return err
		},
	}
}
