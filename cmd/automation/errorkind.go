package main

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"syscall"

	"automation/blob"
	"automation/models"
	"automation/sandbox"
)

// errorKindKey is the key of an error's class; the kinds below are about the service as a whole.
const (
	errorKindKey     = "error_kind"
	kindDatabaseGone = "database_unavailable"
	kindDiskFull     = "disk_full"
	kindTooManyFiles = "too_many_files"
)

// errorKinds are the values of error_kind, first match: words that alerts can count, where the text of an error varies.
var errorKinds = []struct {
	err  error
	kind string
}{
	{context.Canceled, "cancelled"},
	{sandbox.ErrBreakerOpen, "provider_down"},
	{sandbox.ErrQuota, "quota"},
	{sandbox.ErrRefused, "credential_refused"},
	{sandbox.ErrInvalid, "request_refused"},
	{sandbox.ErrGone, "gone"},
	{sandbox.ErrBusy, "busy"},
	{sandbox.ErrNotReady, "box_not_ready"},
	{sandbox.ErrUnreachable, "box_unreachable"},
	{models.ErrSealed, "secret_sealed"},
	{models.ErrLeaseLost, "lease_lost"},
	{models.ErrConflict, "conflict"},
	{models.ErrNotFound, "not_found"},
	{fs.ErrNotExist, "not_found"},
	{blob.ErrKey, "invalid"},
	{syscall.EMFILE, kindTooManyFiles},
	{syscall.ENFILE, kindTooManyFiles},
	{context.DeadlineExceeded, "timeout"},
}

// errorKind classes an error; "" where no class fits.
func errorKind(err error) string {
	for _, k := range errorKinds {
		if errors.Is(err, k.err) {
			return k.kind
		}
	}
	switch fault := models.Fault(err); {
	case errors.Is(fault, models.ErrFull):
		return kindDiskFull
	case errors.Is(fault, models.ErrUnavailable):
		return kindDatabaseGone
	}
	return ""
}

// withErrorKind adds error_kind where a line has an error that has one.
func withErrorKind(to []slog.Attr, key string, v any) []slog.Attr {
	err, isError := v.(error)
	if key != "error" || !isError {
		return to
	}
	if kind := errorKind(err); kind != "" {
		to = append(to, slog.String(errorKindKey, kind))
	}
	return to
}
