package metrics

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"automation/models"
)

func TestAlertsAskForMetricsThatExist(t *testing.T) {
	raw, err := os.ReadFile("../docs/alerts.yaml")
	require.NoError(t, err)
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Annotations map[string]string
				Labels      map[string]string
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(raw, &file))
	m := whole(t, models.Census{})
	m.Request(t.Context(), "/v1", "POST", 201, time.Second)
	have := families(t, m)
	name, label := regexp.MustCompile(`automation_\w+`), regexp.MustCompile(`(\w+)(?:=|!=|=~|!~)"([^"]+)"`)
	found := 0
	for _, rule := range file.Groups[0].Rules {
		found++
		require.NotEmpty(t, rule.Annotations["summary"], rule.Alert)
		require.NotEmpty(t, rule.Annotations["description"], rule.Alert)
		require.NotEmpty(t, rule.Labels["severity"], rule.Alert)
		names := name.FindAllString(rule.Expr, -1)
		require.NotEmpty(t, names, rule.Alert)
		for _, n := range names {
			require.Contains(t, have, n, rule.Alert)
			for _, l := range label.FindAllStringSubmatch(rule.Expr, -1) {
				all, has := values(have[n])[l[1]]
				for value := range strings.SplitSeq(l[2], "|") {
					require.True(t, !has || slices.Contains(all, value), "%s: %s of %s is never %s", rule.Alert, l[1], n, value)
				}
			}
		}
	}
	require.GreaterOrEqual(t, found, 6)
}
