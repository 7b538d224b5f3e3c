package models

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestStatusDetail_Seen(t *testing.T) {
	first := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	d := StatusDetail{Phase: "verification", Kind: "server_error", Transient: true, Source: "sandbox_api", Operation: "get_sandbox", StatusCode: 503}

	once := d.Seen(first, nil)
	twice := d.Seen(first.Add(time.Minute), once)
	var got StatusDetail
	require.NoError(t, json.Unmarshal(twice, &got))
	require.Equal(t, "sandbox_api:get_sandbox:server_error:503", got.Fingerprint)
	require.Equal(t, 2, got.Count)
	require.Equal(t, first, got.FirstSeenAt)
	require.Equal(t, first.Add(time.Minute), got.LastSeenAt)

	other := StatusDetail{Phase: "dispatch", Kind: "environment_unavailable", Transient: true, Source: "sandbox_api", Operation: "get_execution_context"}
	require.NoError(t, json.Unmarshal(other.Seen(first.Add(time.Hour), twice), &got))
	require.Equal(t, "dispatch:sandbox_api:get_execution_context:environment_unavailable", got.Fingerprint)
	require.Equal(t, 1, got.Count, "another cause is counted anew")
}
