package sandbox

import (
	"context"
	"errors"
	"net"
	"net/http"
)

// Passing classes an error of a provider or of a box's agent server that may pass by itself, in the contract's words
// (section 3.1): rate_limited, server_error, timeout, transport; status is that of the answer, 0 when there was none. kind is
// "" for everything else.
func Passing(err error) (kind string, status int) {
	if answer, ok := errors.AsType[*ProviderError](err); ok {
		status = answer.Status
	} else if answer, ok := errors.AsType[*AgentError](err); ok {
		status = answer.Status
	}
	var network net.Error
	switch {
	case status == http.StatusTooManyRequests:
		return "rate_limited", status
	case status >= http.StatusInternalServerError:
		return "server_error", status
	case status == http.StatusRequestTimeout:
		return "timeout", status
	case status != 0:
		return "", status
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return "timeout", 0
	case errors.As(err, &network), errors.Is(err, ErrUnreachable), errors.Is(err, ErrBreakerOpen):
		return "transport", 0
	}
	return "", 0
}
