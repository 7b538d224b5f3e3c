package router

import "net/http"

// consent is POST /v1/telemetry/consent.
var consent = object([]field{
	{name: "consent_granted", required: true, rule: boolean},
	{name: "frontend_distinct_id", rule: nullable(text(0, 256))},
})

type consentObject struct {
	Granted bool `json:"consent_granted"`
}

func (s *server) telemetryRoutes() []route {
	return []route{
		{method: "POST", path: "/v1/telemetry/consent", about: "service", name: "setTelemetryConsent", access: contract,
			summary: "Answered as the Python service does; nothing is stored, and nothing is ever sent",
			body:    &consent, example: map[string]any{"consent_granted": false}, status: statusOK, answer: consentObject{}, handle: s.setConsent},
	}
}

// setConsent is POST /v1/telemetry/consent (contract section 2.12). There is no telemetry here that anybody could consent to.
func (s *server) setConsent(w http.ResponseWriter, r *http.Request, _ Caller) error {
	var c check
	in, err := s.body(&c, w, r, consent, false)
	if err != nil {
		return err
	}
	if s.Cloud != nil {
		return badRequest("Telemetry consent is managed by the main OpenHands app in cloud mode.")
	}
	return ok(w, consentObject{Granted: get[bool](in, "consent_granted")})
}
