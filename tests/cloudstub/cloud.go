package cloudstub

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// work does what a request asks for.
func (s *Stub) work(w http.ResponseWriter, r *http.Request, op, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch op {
	case "users_me":
		s.usersMe(w, r)
	case "agent_profiles":
		s.agentProfiles(w, r)
	case "mint":
		s.mint(w, r)
	case "create", "get", "search", "pause", "resume", "delete":
		user := s.keys[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")]
		if p := personBy(func(p Person) bool { return p.Token == strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ") }); p != nil {
			user = p.UserID
		}
		if user == "" {
			answerJSON(w, http.StatusUnauthorized, detail("Invalid API key"))
			return
		}
		s.sandboxes(w, r, op, id, user)
	case "other":
		answerJSON(w, http.StatusNotFound, detail("Not Found"))
	default:
		s.agent(w, r, op, id)
	}
}

func personBy(is func(Person) bool) *Person {
	for i := range People {
		if is(People[i]) {
			return &People[i]
		}
	}
	return nil
}

// caller is whose token, cookie or minted key a request shows; nil: nobody's.
func (s *Stub) caller(r *http.Request) *Person {
	credential := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if credential == "" {
		for _, name := range []string{"openhands_auth", "keycloak_auth"} {
			if c, err := r.Cookie(name); err == nil {
				credential = c.Value
			}
		}
	}
	user := s.keys[credential]
	p := personBy(func(p Person) bool { return p.Token == credential || user != "" && p.UserID == user })
	if p == nil || s.left[p.UserID] {
		return nil
	}
	return p
}

// agentProfiles lists those of the caller's organization: Org alone has one.
func (s *Stub) agentProfiles(w http.ResponseWriter, r *http.Request) {
	p := s.caller(r)
	if p == nil {
		answerJSON(w, http.StatusUnauthorized, detail("Invalid credential"))
		return
	}
	profiles := []any{}
	if p.OrgID == Org {
		profiles = append(profiles, map[string]any{"id": AgentProfile, "name": "reviewer", "agent_kind": "openhands", "revision": 1})
	}
	answerJSON(w, http.StatusOK, map[string]any{"profiles": profiles, "active_agent_profile_id": nil})
}

func (s *Stub) usersMe(w http.ResponseWriter, r *http.Request) {
	p := s.caller(r)
	switch org := r.Header.Get("X-Org-Id"); {
	case p == nil:
		answerJSON(w, http.StatusUnauthorized, detail("Invalid credential"))
	case org != "" && org != p.OrgID:
		answerJSON(w, http.StatusForbidden, detail("Not a member"))
	default:
		answerJSON(w, http.StatusOK, map[string]any{
			"id": p.UserID, "org_id": p.OrgID, "email": p.Name + "@example.test", "role": "member",
			"permissions": p.Permissions, "llm_profiles": p.Profiles,
		})
	}
}

func (s *Stub) mint(w http.ResponseWriter, r *http.Request) {
	part := strings.Split(r.URL.Path, "/") // "", api, service, users, U, orgs, O, api-keys
	if r.Header.Get("X-Service-API-Key") != ServiceKey {
		answerJSON(w, http.StatusUnauthorized, detail("Invalid service key"))
		return
	}
	if len(part) != 8 || s.left[part[4]] {
		answerJSON(w, http.StatusNotFound, detail("User is not a member of the organization"))
		return
	}
	name := part[4]
	if p := personBy(func(p Person) bool { return p.UserID == part[4] }); p != nil {
		name = p.Name
	}
	s.minted++
	key := fmt.Sprintf("sk-stub-%s-%d", name, s.minted)
	s.keys[key] = part[4]
	answerJSON(w, http.StatusCreated, map[string]string{"key": key})
}

// sandboxes are the routes of boxes. A box of somebody else is as unknown as one that never was.
func (s *Stub) sandboxes(w http.ResponseWriter, r *http.Request, op, id, user string) {
	b := s.box(id)
	if b != nil && (b.Owner != user || !b.DeletedAt.IsZero()) {
		b = nil
	}
	switch op {
	case "create":
		s.create(w, user)
	case "get":
		list := make([]any, 0, 1)
		for _, id := range r.URL.Query()["id"] {
			b := s.box(id)
			if b == nil || b.Owner != user || !b.DeletedAt.IsZero() {
				list = append(list, nil)
				continue
			}
			list = append(list, s.info(b))
		}
		answerJSON(w, http.StatusOK, list)
	case "search":
		s.search(w, r, user)
	case "pause":
		s.answerChange(w, b, "PAUSED")
	case "resume":
		s.answerChange(w, b, "RUNNING")
	case "delete":
		if r.URL.Query().Get("sandbox_id") != id { // the handler wants the id in path and query
			answerJSON(w, http.StatusUnprocessableEntity, detail("sandbox_id is missing"))
			return
		}
		if b != nil {
			b.DeletedAt = time.Now()
		}
		s.answerChange(w, b, "")
	}
}

// search shows a user's sandboxes, newest first, a hundred a page; the id of a page is how many are before it.
func (s *Stub) search(w http.ResponseWriter, r *http.Request, user string) {
	items, before := []any{}, 0
	from, _ := strconv.Atoi(r.URL.Query().Get("page_id"))
	var next any
	for _, b := range slices.Backward(s.boxes) {
		if b.Owner != user || !b.DeletedAt.IsZero() {
			continue
		}
		if len(items) == 100 {
			next = strconv.Itoa(before)
			break
		}
		if before++; before > from {
			items = append(items, s.info(b))
		}
	}
	answerJSON(w, http.StatusOK, map[string]any{"items": items, "next_page_id": next})
}

// answerChange moves a sandbox; an unknown one is 404, as every failure of the provider's own upstream is.
func (s *Stub) answerChange(w http.ResponseWriter, b *Sandbox, status string) {
	if b == nil {
		answerJSON(w, http.StatusNotFound, detail("Not Found"))
		return
	}
	if status != "" {
		s.become(b, status)
	}
	answerJSON(w, http.StatusOK, map[string]bool{"success": true})
}

func (s *Stub) create(w http.ResponseWriter, user string) {
	b := s.add(user)
	b.starts, b.Detail = s.starting, s.detail
	switch {
	case s.never:
		b.starts = 1 << 30
	case s.detail != "":
		b.Status = "ERROR"
	}
	answerJSON(w, http.StatusOK, map[string]string{"id": b.ID})
}

// add makes a sandbox.
func (s *Stub) add(user string) *Sandbox {
	id := fmt.Sprintf("sbx-%05d-%08x", len(s.boxes)+1, time.Now().UnixNano()&0xffffffff)
	b := &Sandbox{ID: id, Owner: user, Status: "STARTING", CreatedAt: time.Now(), uploads: map[string][]byte{}}
	s.keep(b)
	return b
}

// info is a sandbox as the API shows it: key and addresses only while it runs.
func (s *Stub) info(b *Sandbox) map[string]any {
	if b.Status == "STARTING" {
		if b.starts--; b.starts < 0 {
			s.become(b, "RUNNING")
		}
	}
	info := map[string]any{
		"id": b.ID, "created_by_user_id": b.Owner, "status": b.Status, "session_api_key": nil, "exposed_urls": nil,
		"status_detail": nil, "created_at": b.CreatedAt.UTC(),
	}
	if b.Detail != "" {
		info["status_detail"] = b.Detail
	}
	if b.Status == "RUNNING" {
		info["session_api_key"] = b.Key
		info["exposed_urls"] = []any{
			map[string]any{"name": "VSCODE", "url": s.URL + "/vscode", "port": 60001},
			map[string]any{"name": "AGENT_SERVER", "url": s.URL + "/sb/" + b.ID, "port": 60000},
		}
	}
	return info
}
