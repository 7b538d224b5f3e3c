package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"automation/sandbox"
)

func TestPassing(t *testing.T) {
	for _, c := range []struct {
		err    error
		kind   string
		status int
	}{
		{&sandbox.ProviderError{Status: 429}, "rate_limited", 429},
		{fmt.Errorf("create: %w", &sandbox.ProviderError{Status: 503}), "server_error", 503},
		{&sandbox.AgentError{Status: 500}, "server_error", 500},
		{&sandbox.AgentError{Status: 408}, "timeout", 408},
		{&sandbox.AgentError{Status: 404}, "", 404},
		{context.DeadlineExceeded, "timeout", 0},
		{&net.OpError{Op: "dial", Err: errors.New("refused")}, "transport", 0},
		{sandbox.ErrUnreachable, "transport", 0},
		{sandbox.ErrBreakerOpen, "transport", 0},
		{errors.New("odd"), "", 0},
	} {
		kind, status := sandbox.Passing(c.err)
		require.Equal(t, c.kind, kind, c.err)
		require.Equal(t, c.status, status, c.err)
	}
}
