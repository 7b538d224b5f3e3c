package sandbox

import (
	"regexp"
	"strings"
)

var ingressClass = regexp.MustCompile(`runtime_ingress:[a-z_]+(:\d{3})?`)

// detailClasses reduce a provider's words on a box that failed, first match: they may hold names and addresses of its own.
var detailClasses = []struct {
	class string
	words []string
}{
	{"image_pull_error", []string{"image_pull", "imagepull", "errimage", "pull image", "pull access denied"}},
	{"container_config_error", []string{"container_config", "containerconfig"}},
	{"container_create_error", []string{"container_create", "createcontainer", "containercreate"}},
	{"insufficient_cpu", []string{"insufficient_cpu", "insufficient cpu"}},
	{"insufficient_memory", []string{"insufficient_memory", "insufficient memory"}},
	{"insufficient_ephemeral_storage", []string{"insufficient_ephemeral", "insufficient ephemeral"}},
	{"insufficient_pods", []string{"insufficient_pods", "too many pods"}},
	{"scheduling_constraint", []string{"scheduling_constraint", "node affinity", "node selector", "taint", "unschedulable"}},
}

// DetailClass reduces a provider's words on a box that failed to their class (contract section 3.5); "" when there are none.
// A class is its own class.
func DetailClass(raw string) string {
	if raw == "" {
		return ""
	}
	if ingress := ingressClass.FindString(raw); ingress != "" {
		return ingress
	}
	raw = strings.ToLower(raw)
	for _, c := range detailClasses {
		for _, word := range c.words {
			if strings.Contains(raw, word) {
				return c.class
			}
		}
	}
	return "unclassified"
}
