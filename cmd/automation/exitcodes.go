package main

import (
	"context"
	"errors"
	"net/http"
	"syscall"

	"github.com/spf13/cobra"

	"automation/config"
	"automation/migrations"
	"automation/models"
	"automation/sandbox/backend"
)

// Exit codes of every command.
const (
	exitOK             = 0
	exitFailed         = 1
	exitUsage          = 2
	exitNotFound       = 3
	exitAuthentication = 4
	exitConflict       = 5
	exitPartly         = 6
	exitUnreachable    = 69
	exitConfiguration  = 78
)

// exitCodes is the help topic.
const exitCodes = `  0  ok
  1  failed; also: doctor or healthcheck found a problem, a watched run did not complete
  2  usage: the command line is wrong, or the service refuses a value in it; also: interrupted
  3  not found
  4  authentication: no login, or one that the service refuses
  5  conflict: the thing is in a state that does not allow it, or another process owns the SQLite file
  6  partly done: of several things some failed; each that failed is named on standard error
 69  unreachable: nothing answers, or something that is not this service; serve and migrate: the database does not answer
 78  configuration: a variable is wrong, or the schema of the database does not fit; see automation doctor
`

func newExitCodesTopic() *cobra.Command {
	return &cobra.Command{Use: "exit-codes", Short: "What the exit code of a command says", Long: exitCodes}
}

// exitError is the error of a command that has already written what is wrong.
type exitError int

// Error implements error.
func (c exitError) Error() string { return "exit code" }

// errMissing means that what was named does not exist.
var errMissing = errors.New("not found")

// codeOf maps an error to the exit code of the process.
func codeOf(err error) int {
	var usage usageError
	var problems *config.Error
	var refused *apiError
	switch {
	case errors.As(err, &usage), errors.Is(err, context.Canceled):
		return exitUsage
	case errors.As(err, &problems), errors.Is(err, backend.ErrSettings):
		return exitConfiguration
	case errors.As(err, &refused):
		return codeOfStatus(refused.status)
	case errors.Is(err, errMissing):
		return exitNotFound
	case errors.Is(err, errNoKey):
		return exitAuthentication
	case errors.Is(err, errUnreachable):
		return exitUnreachable
	case errors.Is(models.Fault(err), models.ErrUnavailable) && !errors.Is(err, syscall.EADDRINUSE): // a port that is taken is no database
		return exitUnreachable
	case errors.Is(err, errOwned):
		return exitConflict
	case errors.Is(err, migrations.ErrForeign), errors.Is(err, migrations.ErrMissing), errors.Is(err, migrations.ErrOld),
		errors.Is(err, migrations.ErrNewer), errors.Is(err, migrations.ErrDirty):
		return exitConfiguration
	}
	return exitFailed
}

// codeOfStatus maps an HTTP status that is not a success.
func codeOfStatus(status int) int {
	switch status {
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		return exitUsage
	case http.StatusUnauthorized, http.StatusForbidden:
		return exitAuthentication
	case http.StatusNotFound, http.StatusGone:
		return exitNotFound
	case http.StatusConflict, http.StatusPreconditionFailed:
		return exitConflict
	}
	return exitFailed
}
