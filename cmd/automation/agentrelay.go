package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"

	"github.com/spf13/cobra"

	"automation/config"
)

// ticketVariable brings a ticket, which does not belong on a command line that others can see.
const ticketVariable = "AUTOMATION_AGENT_TICKET"

func newAgentRelay(io Streams, tenant *string, as *format) *cobra.Command {
	return &cobra.Command{
		Use: "relay BOX", Short: "Join standard input and output to the server in a box, for one ticket", Args: cobra.ExactArgs(1),
		Long: "Joins standard input and output to the server in a box, as a ProxyCommand or a forced command of SSH does: HTTP goes in,\n" +
			"answers come out. " + ticketVariable + " is the ticket, and no login is needed then; without it one is asked for with the login.",
		Example: "  automation agent relay 019f0f5e-8d5a-7c11-9a53-0d6f1c2b3a4d",
		RunE: func(c *cobra.Command, args []string) error {
			ticket := config.Environment(io.Env)[ticketVariable]
			if ticket != "" {
				ctx, stop := untilSignal(c.Context())
				defer stop()
				root, err := io.serviceURL(config.Environment(io.Env)["AUTOMATION_URL"])
				if err != nil {
					return err
				}
				return newClient(root, "").atRoot().relay(ctx, agentPathOf(args[0], io.tenant(*tenant)), ticket, io)
			}
			return io.withClient(as, func(ctx context.Context, s *session, args []string) error {
				path, err := s.agentPath(ctx, args[0], *tenant)
				if err != nil {
					return err
				}
				var made struct {
					Ticket string `json:"ticket"`
				}
				if err := s.atRoot().json(ctx, http.MethodPost, path+"/tickets", nil, &made); err != nil {
					return err
				}
				return s.atRoot().relay(ctx, path, made.Ticket, io)
			})(c, args)
		},
	}
}

// relay opens the connection and copies both ways until either side ends.
func (c *client) relay(ctx context.Context, path, ticket string, streams Streams) error {
	conn, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.root+path+"/relay", nil)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Ticket "+ticket)
	request.Header.Set("Connection", "Upgrade")
	request.Header.Set("Upgrade", "automation-relay")
	if err := request.Write(conn); err != nil {
		return c.unreached(err)
	}
	from := bufio.NewReader(conn)
	response, err := http.ReadResponse(from, request)
	if err != nil {
		return c.unreached(err)
	}
	if response.StatusCode != http.StatusSwitchingProtocols {
		defer response.Body.Close()
		return c.refused(response)
	}
	// It ends with standard input, or with the process. The connection stays open for the answers.
	go func() { _, _ = io.Copy(conn, streams.input()) }()
	if _, err := io.Copy(streams.Out, from); err != nil && ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
		return c.unreached(err)
	}
	return ctx.Err()
}

// input is standard input, which only this command reads.
func (Streams) input() io.Reader { return os.Stdin }

// dial connects to the service.
func (c *client) dial(ctx context.Context) (net.Conn, error) {
	u, err := url.Parse(c.root)
	if err != nil {
		return nil, err
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	address := net.JoinHostPort(u.Hostname(), port)
	var conn net.Conn
	if u.Scheme == "https" {
		conn, err = (&tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}}).DialContext(ctx, "tcp", address)
	} else {
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}
	if err != nil {
		return nil, c.unreached(err)
	}
	return conn, nil
}

// refused reads the refusal of an answer that is still open.
func (c *client) refused(response *http.Response) error {
	got := answer{code: response.StatusCode, status: response.Status, requestID: response.Header.Get("X-Request-Id")}
	got.body, _ = io.ReadAll(io.LimitReader(response.Body, mostAnswer))
	return c.refusal(got)
}
