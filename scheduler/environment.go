package scheduler

import (
	"encoding/json"
	"fmt"
	"sort"
	"strings"

	"automation/models"
)

// variables is the environment of a run's command.
type variables map[string]string

// file renders v as the environment file: one export a line, in the order of names.
func (v variables) file() string {
	names := make([]string, 0, len(v))
	for name := range v {
		names = append(names, name)
	}
	sort.Strings(names)
	var b strings.Builder
	for _, name := range names {
		fmt.Fprintf(&b, "export %s=%s\n", name, quote(strings.ReplaceAll(v[name], "\x00", "")))
	}
	return b.String()
}

// commonVariables is what every run's command finds in its environment, whatever it runs in (contract section 4.3). apiURL is
// the public address of the API, without a slash at its end.
func commonVariables(run *models.Run, a *models.Automation, apiURL string) variables {
	var trigger models.Trigger
	_ = json.Unmarshal(a.Trigger, &trigger) // stored by us; an unreadable one leaves the type empty
	source := ""
	if run.TriggerSource != nil {
		source = string(*run.TriggerSource)
	}
	runURL := fmt.Sprintf("%s/v1/runs/%s", apiURL, run.ID)
	v := variables{
		"AUTOMATION_ID":                 a.ID.String(),
		"AUTOMATION_NAME":               a.Name,
		"AUTOMATION_RUN_ID":             run.ID.String(),
		"AUTOMATION_ORG_ID":             a.OrgID.String(),
		"AUTOMATION_USER_ID":            a.UserID.String(),
		"AUTOMATION_TRIGGER_TYPE":       trigger.Type,
		"AUTOMATION_TRIGGER_SOURCE":     source,
		"AUTOMATION_RUN_TRIGGER_SOURCE": source,
		"AUTOMATION_CALLBACK_URL":       runURL + "/complete",
		"AUTOMATION_PHASE_URL":          runURL + "/phase",
		"AUTOMATION_API_URL":            apiURL,
		"AUTOMATION_EVENT_PAYLOAD":      eventPayload(run, a, trigger.Type),

		"OPENHANDS_OBSERVABILITY_METADATA":  observabilityMetadata(run, a, trigger.Type, source),
		"OPENHANDS_OBSERVABILITY_TAGS":      "automation,automation.trigger:" + trigger.Type + ",automation.run_trigger:" + source,
		"OPENHANDS_OBSERVABILITY_SPAN_NAME": "automation.conversation",
	}
	if a.Model != nil {
		v["AUTOMATION_MODEL"] = *a.Model
	}
	if a.AgentProfileID != nil {
		v["AUTOMATION_AGENT_PROFILE_ID"] = a.AgentProfileID.String()
	}
	if run.ConversationID != nil {
		v["AUTOMATION_CONVERSATION_ID"] = *run.ConversationID
	}
	return v
}

// eventPayload tells the command in JSON what started it.
func eventPayload(run *models.Run, a *models.Automation, triggerType string) string {
	payload := struct {
		Trigger        string          `json:"trigger"`
		TriggerPayload json.RawMessage `json:"trigger_payload,omitempty"`
		AutomationID   string          `json:"automation_id"`
		AutomationName string          `json:"automation_name"`
		Event          json.RawMessage `json:"event,omitempty"`
		Model          *string         `json:"model,omitempty"`
	}{triggerType, a.Trigger, a.ID.String(), a.Name, run.EventPayload, a.Model}
	return encode(payload)
}

func observabilityMetadata(run *models.Run, a *models.Automation, triggerType, source string) string {
	return encode(map[string]string{
		"automation.id":                 a.ID.String(),
		"automation.name":               a.Name,
		"automation.org_id":             a.OrgID.String(),
		"automation.user_id":            a.UserID.String(),
		"automation.trigger_source":     triggerType,
		"automation.run_id":             run.ID.String(),
		"automation.run.status":         string(run.Status),
		"automation.run.trigger_source": source,
	})
}

// encode renders values whose parts are strings and JSON read from the database; an unreadable one gives an empty object.
func encode(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		return "{}"
	}
	return string(raw)
}
