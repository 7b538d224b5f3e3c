package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// carrier is a transport without a network.
type carrier func() string

func (c carrier) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(c()))}, nil
}

// follower follows what answer gives at each try, into out.
func follower(answer carrier, out io.Writer) *following {
	api := newClient("http://service", "token")
	api.http = &http.Client{Transport: answer}
	return &following{session: &session{client: api, io: Streams{Out: out, Err: io.Discard}}, api: api, path: "/agent", id: "sxe_1"}
}

func TestS2_072_AServiceThatStopsIsNotAskedWithoutAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := follower(func() string { asked++; return "" }, io.Discard).run(ctx, true)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.LessOrEqual(t, asked, 10)
	})
}

// full takes nothing.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestS2_057_WhatCannotBeWrittenIsNotPassedOver(t *testing.T) {
	asked := 0
	err := follower(func() string {
		asked++
		return `{"type":"stdout","seq":1,"data":"YQ=="}` + "\n"
	}, full{}).run(t.Context(), true)
	require.ErrorIs(t, err, errUnwritten)
	require.Equal(t, 1, asked)
}
