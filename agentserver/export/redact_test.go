package export

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// marker makes planted secrets of one kind.
func marker(n int) string { return fmt.Sprintf("planted-marker-%03d", n) }

func TestS0_072_BR37_SecretsAreHiddenByFieldAtAnyDepth(t *testing.T) {
	for i, document := range []string{
		`{"agent":{"llm":{"api_key":%q,"model":"m"}}}`,
		`{"agent":{"condenser":{"llm":{"api_key":%q}}}}`,
		`{"llm_api_key":%q}`, `{"apiKey":%q}`, `{"aws_secret_access_key":%q}`, `{"aws_session_token":%q}`, `{"AWS_ACCESS_KEY_ID":%q}`,
		`{"secret_registry":{"secret_sources":{"A":{"kind":"StaticSecret","value":%q}}}}`,
		`{"secrets":{"anything":%q}}`, `{"secrets":[{"name":"a","value":%q}]}`, `{"extra_headers":{"X-Custom":%q}}`,
		`{"mcp_config":{"servers":[{"env":{"FOO":%q}}]}}`, `{"environment":["A=",%q]}`, `{"tokens":[],"password":%q}`,
		`{"provider_tokens":{"github":{"token":%q}}}`, `{"api_keys":["x",[%q]]}`, `[[{"authorization":%q}]]`,
		`{"session_api_key":%q}`, `{"headers":[{"Cookie":[%q]}]}`, `{"database_dsn":%q}`,
	} {
		secret := marker(i)
		text := fmt.Sprintf(document, secret)
		r := NewRedactor()
		out := r.JSON([]byte(text))
		require.NotContains(t, string(out), secret, text)
		require.True(t, json.Valid(out), string(out))
		require.Contains(t, string(out), hidden)
	}
}

func TestS0_072_BR37_SecretsAreHiddenByShapeWhereverTheyStand(t *testing.T) {
	for shape, secret := range map[string]string{
		"export OPENAI_API_KEY=%s; run":              "abcdefghijk",
		"curl -H 'Authorization: Bearer %s'":         "abcdefghijklmnop",
		"git clone https://user:%s@example.com/r":    "hunter2hunter2",
		"https://example.com/cb?token=%s&x=1":        "qwertyuiop",
		"https://b.example.com/o?X-Amz-Signature=%s": "0123456789abcdef",
		"it printed %s and went on":                  "sk-proj-abcdefghijklmnopqrstuv",
		"pushed with %s.":                            "ghp_abcdefghijklmnopqrstuvwxyz0123",
		"cipher %s here":                             "gAAAAABlabcdefghijklmnopqrstuvwxyz==",
		"jwt %s":                                     "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
		"-----BEGIN RSA PRIVATE KEY-----\n%s\n-----END RSA PRIVATE KEY-----": "MIIEpAIBAAKCAQEA",
		`"client_secret": "%s"`: "qwertyuiop",
		"password: %s":          "qwertyuiop",
	} {
		text, err := json.Marshal(map[string]any{"content": []any{map[string]any{"text": fmt.Sprintf(shape, secret)}}})
		require.NoError(t, err)
		out := string(NewRedactor().JSON(text))
		require.NotContains(t, out, secret, shape)
		before, _, _ := strings.Cut(shape, "%s")
		quoted, _ := json.Marshal(before)
		require.Contains(t, out, strings.Trim(string(quoted), `"`), "what is no secret stays")
		require.NotContains(t, string(NewRedactor().JSON([]byte(fmt.Sprintf(shape, secret)+"\n{broken"))), secret, "in what is no JSON too")
	}
}

func TestS0_072_AValueThatIsSecretOnceIsHiddenEverywhere(t *testing.T) {
	r := NewRedactor("known-from-outside")
	r.Learn([]byte(`{"secrets":{"MINE":"correct horse battery"}}`))
	require.JSONEq(t, `{"text":"it said **********, **********"}`, string(r.JSON([]byte(`{"text":"it said correct horse battery, known-from-outside"}`))))
	require.JSONEq(t, `{"**********":1}`, string(r.JSON([]byte(`{"known-from-outside":1}`))))
	escaped := NewRedactor()
	escaped.Learn([]byte(`{"password":"a\"b\u00e9cdefgh"}`))
	require.JSONEq(t, `{"text":"x**********y"}`, string(escaped.JSON([]byte(`{"text":"xa\u0022b\u00E9cdefghy"}`))))
}

func TestS0_072_EveryByteThatIsNoSecretStays(t *testing.T) {
	for _, text := range []string{
		"{ \"b\" : 1.50e3,\n\t\"a\":[true,null , \"caf\\u00e9 <&>\"],\"prompt_tokens\":12,\"max_token\":7}\n", "", "[]", `"x"`,
		"{\"kind\":\"a\"}\n{\"kind\":\"b\"}\n\n", `{"secret":""}`, `{"secrets":{"kind":"StaticSecret","value":null}}`, `{"tokens":"none"}`,
	} {
		require.Equal(t, text, string(NewRedactor().JSON([]byte(text))))
	}
	require.Equal(t, "{ \"api_key\" : \"**********\" , \"n\": 1.0 }", string(NewRedactor().JSON([]byte("{ \"api_key\" : \"x\" , \"n\": 1.0 }")))) //nolint:testifylint // to the byte
}
