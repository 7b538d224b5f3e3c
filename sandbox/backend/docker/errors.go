package docker

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"automation/sandbox"
)

// What can be wrong with an engine, beside what every backend has: sandbox.ErrGone is a container that is not there, and
// sandbox.ErrBusy one whose removal is in progress.
var (
	// ErrEngineDown means that nobody answers at AUTOMATION_DOCKER_HOST; it says nothing about any box.
	ErrEngineDown = errors.New("the Docker engine cannot be reached")
	// ErrImageAbsent means that the engine does not have the image, and could or should not pull it.
	ErrImageAbsent = errors.New("the engine does not have the image")
	// ErrNameTaken means that a container that is not ours has the name of a box.
	ErrNameTaken = errors.New("a container that is not ours has the name of the box")
	// ErrPortTaken means that the port which the engine chose was taken by another program meanwhile.
	ErrPortTaken = errors.New("the port of the box was taken meanwhile")
	// ErrDiskFull means that the engine has no room left.
	ErrDiskFull = errors.New("the disk of the engine is full")
	// errNameInUse is the engine's answer to a create; who has the name is seen by a look.
	errNameInUse = errors.New("the name is in use")
)

// classify turns an answer of the engine into the error that callers decide by. The engine says by status what it can, and
// the rest by words.
func classify(what string, err error) error {
	if err == nil {
		return nil
	}
	text := strings.ToLower(err.Error())
	says := func(words ...string) bool {
		for _, w := range words {
			if strings.Contains(text, w) {
				return true
			}
		}
		return false
	}
	kind := error(nil)
	switch {
	case says("permission denied while trying to connect"):
		kind = fmt.Errorf("%w: no right to use the engine's socket", sandbox.ErrRefused)
	case client.IsErrConnectionFailed(err), says("cannot connect to the docker daemon", "connection refused", "broken pipe", "connection reset"):
		kind = ErrEngineDown
	case says("no space left on device", "disk quota exceeded"):
		kind = fmt.Errorf("%w: %w", ErrDiskFull, sandbox.ErrQuota)
	case says("port is already allocated", "address already in use", "ports are not available"):
		kind = ErrPortTaken
	case says("removal of container", "marked for removal", "removal in progress"):
		kind = sandbox.ErrBusy
	case says("is already in use by container"):
		kind = errNameInUse
	case cerrdefs.IsNotFound(err) && says("image"):
		kind = fmt.Errorf("%w: %w", ErrImageAbsent, sandbox.ErrInvalid)
	case cerrdefs.IsNotFound(err):
		kind = sandbox.ErrGone
	case cerrdefs.IsUnauthorized(err), cerrdefs.IsPermissionDenied(err):
		kind = sandbox.ErrRefused
	case cerrdefs.IsInvalidArgument(err):
		kind = sandbox.ErrInvalid
	case cerrdefs.IsInternal(err), cerrdefs.IsUnavailable(err):
		kind = &sandbox.ProviderError{Status: http.StatusInternalServerError, Body: clip(err.Error())}
	}
	if kind == nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return fmt.Errorf("%s: %w: %w", what, kind, err)
}

// clip keeps what an engine says short.
func clip(text string) string {
	const most = 300
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
