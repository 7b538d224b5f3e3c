package process

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// probePatience bounds one look at an agent server on this host.
const probePatience = 2 * time.Second

// probeClient keeps no connection: a look must leave nothing open in a box, nor go through a proxy.
var probeClient = &http.Client{
	Transport: &http.Transport{DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	},
}

// port returns what the agent server wrote in its port file.
func (x box) port() (string, bool) {
	text, err := os.ReadFile(x.control(portFile))
	if err != nil {
		return "", false
	}
	port := strings.TrimSpace(string(text))
	n, err := strconv.ParseUint(port, 10, 16)
	return port, err == nil && n > 0
}

// ready asks the agent server whether it serves. Neither this nor activity moves its idle clock.
func ready(ctx context.Context, url string) error {
	_, err := get(ctx, url+"/ready")
	return err
}

// activity returns the moment of the last activity in a box by the clock now, from how long the agent server has been idle:
// a duration holds whatever its clock shows. now is read before the question, so the answer is never too late.
func activity(ctx context.Context, url string, now func() time.Time) (time.Time, error) {
	asked := now()
	text, err := get(ctx, url+"/server_info")
	if err != nil {
		return time.Time{}, err
	}
	var info struct {
		IdleTime *float64 `json:"idle_time"` // seconds
	}
	if err := json.Unmarshal(text, &info); err != nil {
		return time.Time{}, fmt.Errorf("read server_info: %w", err)
	}
	const most = float64(math.MaxInt64 / int64(time.Second))
	if info.IdleTime == nil || !(*info.IdleTime >= 0 && *info.IdleTime < most) {
		return time.Time{}, fmt.Errorf("server_info shows no idle time")
	}
	idle := time.Duration(*info.IdleTime * float64(time.Second))
	return asked.Add(-idle).UTC().Truncate(time.Microsecond), nil
}

func get(ctx context.Context, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("ask agent server: %w", err)
	}
	response, err := probeClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask agent server: %w", err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("ask agent server: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ask agent server: status %d", response.StatusCode)
	}
	return text, nil
}
