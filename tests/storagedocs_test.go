package tests

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestS0_038_S0_068_S0_078_S0_157_ThePagesSayWhatStorageRulesMean(t *testing.T) {
	providers, api, operations := document(t, "docs/PROVIDERS.md"), document(t, "docs/API.md"), document(t, "docs/OPERATIONS.md")
	require.Contains(t, providers, "time-to-live", "S0-038: what a provider's own time-to-live does")
	require.Contains(t, providers, "Leave `OH_CONVERSATION_STORAGE_RETENTION_DAYS` unset", "S0-157: retention of provider-managed boxes")
	require.Contains(t, api, "`on_stop` or a day for reviews of pull requests and CI", "S0-068")
	require.Contains(t, operations, "no way yet to open an exported history elsewhere", "S0-078: nothing is promised that is not there")
}
