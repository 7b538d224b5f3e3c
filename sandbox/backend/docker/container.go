package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"automation/sandbox"
)

// Labels of a container. Only what carries our deployment is ever listed, and only a container whose workspace id agrees with
// its name is ever changed.
const (
	labelDeployment   = "automation.deployment"
	labelWorkspace    = "automation.workspace"
	labelConversation = "automation.conversation"
	labelIncarnation  = "automation.incarnation" // of one making of the container
)

const (
	serverPort  = "8000/tcp" // of the agent server in the box
	namePrefix  = "automation-"
	portTries   = 5
	settleEvery = 50 * time.Millisecond
	settleMost  = 15 * time.Second // how long a removal or restart in progress is waited for
	readyMost   = 25 * time.Second // how long a start waits for the agent server; it may take longer
	logBytes    = "10m"            // of a container's log, kept by the engine
	tailLines   = "5"
)

// nameOf is the name of a box's container, and the identity of the box: the container may be made anew.
func nameOf(id uuid.UUID) string { return namePrefix + id.String() }

// spec is the container of a box, as hardened as an agent server allows.
func (b *Backend) spec(r record) client.ContainerCreateOptions {
	labels := map[string]string{
		labelDeployment: r.Deployment.String(), labelWorkspace: r.WorkspaceID.String(), labelIncarnation: uuid.NewString(),
	}
	if r.Conversation != uuid.Nil {
		labels[labelConversation] = r.Conversation.String()
	}
	port := network.MustParsePort(serverPort)
	grace, init, limit := b.config.StopGraceSeconds, true, (*int64)(nil)
	if b.config.Processes > 0 {
		limit = &b.config.Processes
	}
	host := &container.HostConfig{
		Mounts: b.mounts(r), Init: &init,
		PortBindings:  network.PortMap{port: {{HostIP: netip.MustParseAddr("127.0.0.1")}}}, // the engine chooses the port
		ExtraHosts:    []string{"host.docker.internal:host-gateway"},                       // callbacks arrive
		CapDrop:       []string{"ALL"},
		SecurityOpt:   []string{"no-new-privileges"},
		RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled},
		LogConfig:     container.LogConfig{Type: "json-file", Config: map[string]string{"max-size": logBytes, "max-file": "1"}},
		Resources: container.Resources{
			Memory: b.config.MemoryBytes, NanoCPUs: b.cpus(), PidsLimit: limit,
			Ulimits: []*container.Ulimit{{Name: "core"}},
		},
	}
	return client.ContainerCreateOptions{
		Name: nameOf(r.WorkspaceID), HostConfig: host,
		Config: &container.Config{
			Image: b.config.Image, Cmd: []string{"--host", "0.0.0.0", "--port", port.Port()}, User: r.User, Env: b.environment(r),
			WorkingDir: homeDir, Labels: labels, ExposedPorts: network.PortSet{port: {}}, StopTimeout: &grace,
		},
	}
}

// mounts are the directories of a box, and a caller's own checkout in place of its workspace.
func (b *Backend) mounts(r record) []mount.Mount {
	var all []mount.Mount
	for _, p := range places {
		source := filepath.Join(b.filesPath(r.WorkspaceID), p.name)
		if p.target == workspaceDir && r.Workspace != "" {
			source = r.Workspace
		}
		all = append(all, mount.Mount{Type: mount.TypeBind, Source: source, Target: p.target})
	}
	return all
}

// environment is all that a box is told: where its files are, its keys, and what the settings add. Never the service's own
// environment (S0-010).
func (b *Backend) environment(r record) []string {
	words := maps.Clone(b.config.Env)
	if words == nil {
		words = map[string]string{}
	}
	persistence := homeDir + "/.openhands"
	maps.Copy(words, map[string]string{
		"HOME": homeDir, "AUTOMATION_WORKSPACE_ID": r.WorkspaceID.String(),
		"OH_SESSION_API_KEYS_0": r.SessionKey, "OH_SECRET_KEY": r.SecretKey,
		"OH_WORKSPACE_PATH": workspaceDir, "OH_CONVERSATIONS_PATH": conversationsDir,
		"OH_PERSISTENCE_DIR": persistence, "OH_BASH_EVENTS_DIR": persistence + "/bash_events",
	})
	env := make([]string, 0, len(words))
	for _, name := range slices.Sorted(maps.Keys(words)) {
		env = append(env, name+"="+words[name])
	}
	return env
}

// view is a container as the engine shows it.
type view struct {
	id      string
	state   container.State
	port    string // on the loopback interface; "" while it has none
	labels  map[string]string
	env     []string
	missing bool
}

// look asks the engine about the container of a box. One that is not there is a view too; one of somebody else is
// ErrNameTaken.
func (b *Backend) look(ctx context.Context, id uuid.UUID) (view, error) {
	answer, err := b.engine.ContainerInspect(ctx, nameOf(id), client.ContainerInspectOptions{})
	if err = classify("inspect container", err); errors.Is(err, sandbox.ErrGone) {
		return view{missing: true}, nil
	}
	if err != nil {
		return view{}, err
	}
	c := answer.Container
	v := view{id: c.ID}
	if c.State != nil {
		v.state = *c.State
	}
	if c.Config != nil {
		v.labels, v.env = c.Config.Labels, c.Config.Env
	}
	if v.labels[labelWorkspace] != id.String() {
		return v, fmt.Errorf("%w: %s (%s)", ErrNameTaken, nameOf(id), clip(c.ID))
	}
	if c.NetworkSettings != nil && v.state.Running {
		for _, binding := range c.NetworkSettings.Ports[network.MustParsePort(serverPort)] {
			v.port = binding.HostPort
		}
	}
	return v, nil
}

// url is where the agent server of a running container listens; "" while it does not.
func (v view) url() string {
	if v.port == "" {
		return ""
	}
	return "http://" + net.JoinHostPort("127.0.0.1", v.port)
}

// wake makes a box run, whatever its container is, and waits for the agent server; one that takes long is not an error. It
// repeats what another program can spoil: a removal in progress, a port that was taken.
func (b *Backend) wake(ctx context.Context, r record) error {
	for tries := 0; ; {
		v, err := b.look(ctx, r.WorkspaceID)
		if err == nil {
			err = b.start(ctx, r, v)
		}
		switch {
		case err == nil:
			return b.awaitReady(ctx, r)
		case errors.Is(err, errNameInUse): // by our own container, or by one that is just going: the next look says
		case errors.Is(err, sandbox.ErrBusy):
			if err := b.settled(ctx, r.WorkspaceID); err != nil {
				return err
			}
		case errors.Is(err, ErrPortTaken):
			if v.missing { // nothing was written in it yet
				if err := b.remove(ctx, r.WorkspaceID); err != nil && !errors.Is(err, sandbox.ErrGone) {
					return err
				}
			}
		default:
			return err
		}
		if tries++; tries >= portTries {
			return err
		}
	}
}

// start makes the container of a box run, from what it is.
func (b *Backend) start(ctx context.Context, r record, v view) error {
	if v.missing {
		if err := b.layOut(r); err != nil {
			return err
		}
		if err := b.create(ctx, r); err != nil {
			return err
		}
		v.state.Status = container.StateCreated
	}
	switch v.state.Status {
	case container.StateRunning:
		return nil
	case container.StatePaused:
		_, err := b.engine.ContainerUnpause(ctx, nameOf(r.WorkspaceID), client.ContainerUnpauseOptions{})
		return classify("unpause container", err)
	case container.StateDead: // a removal of it failed
		if err := b.remove(ctx, r.WorkspaceID); err != nil && !errors.Is(err, sandbox.ErrGone) {
			return err
		}
		return fmt.Errorf("container is dead: %w", sandbox.ErrBusy)
	case container.StateRemoving, container.StateRestarting:
		return fmt.Errorf("container is %s: %w", v.state.Status, sandbox.ErrBusy)
	case container.StateCreated, container.StateExited:
	}
	_, err := b.engine.ContainerStart(ctx, nameOf(r.WorkspaceID), client.ContainerStartOptions{})
	return classify("start container", err)
}

// create makes the container, and pulls its image where the engine does not have it.
func (b *Backend) create(ctx context.Context, r record) error {
	spec := b.spec(r)
	_, err := b.engine.ContainerCreate(ctx, spec)
	err = classify("create container", err)
	if !errors.Is(err, ErrImageAbsent) {
		return err
	}
	if b.config.Pull == PullNever {
		return fmt.Errorf("image %s: %w", b.config.Image, err)
	}
	if pullErr := b.pull(ctx); pullErr != nil {
		return fmt.Errorf("image %s: %w: %w", b.config.Image, err, pullErr)
	}
	_, err = b.engine.ContainerCreate(ctx, spec)
	return classify("create container", err)
}

func (b *Backend) pull(ctx context.Context) error {
	stream, err := b.engine.ImagePull(ctx, b.config.Image, client.ImagePullOptions{})
	if err != nil {
		return fmt.Errorf("pull: %s", clip(err.Error()))
	}
	defer stream.Close()
	if err := stream.Wait(ctx); err != nil {
		return fmt.Errorf("pull: %s", clip(err.Error()))
	}
	return nil
}

// settled waits until the container of a box is in a state that lasts.
func (b *Backend) settled(ctx context.Context, id uuid.UUID) error {
	limited, cancel := context.WithTimeout(ctx, settleMost)
	defer cancel()
	for {
		v, err := b.look(limited, id)
		if limited.Err() == nil && err != nil {
			return err
		}
		if err == nil && v.state.Status != container.StateRemoving && v.state.Status != container.StateRestarting {
			return nil
		}
		if pause(limited, settleEvery) != nil {
			return fmt.Errorf("container is still %s: %w", v.state.Status, sandbox.ErrBusy)
		}
	}
}

// awaitReady probes the agent server fast until it answers. It gives up, without an error, when the container has ended or
// takes long: what Inspect then shows counts.
func (b *Backend) awaitReady(ctx context.Context, r record) error {
	limited, cancel := context.WithTimeout(ctx, readyMost)
	defer cancel()
	for limited.Err() == nil {
		v, err := b.look(limited, r.WorkspaceID)
		if err != nil || !v.state.Running || v.state.Paused {
			break
		}
		if b.isReady(r.WorkspaceID, v.state.StartedAt) {
			return nil
		}
		probes, stop := context.WithTimeout(limited, time.Second)
		err = b.agent(v, r.SessionKey).WaitReady(probes)
		stop()
		if err == nil {
			b.nowReady(r.WorkspaceID, v.state.StartedAt)
			return nil
		}
	}
	return ctx.Err()
}

func (b *Backend) agent(v view, key string) sandbox.Agent {
	return sandbox.Agent{URL: v.url(), Key: key, HTTP: b.probes}
}

// remove removes the container of a box, running or not, and waits until its name is free. sandbox.ErrGone where there is
// none.
func (b *Backend) remove(ctx context.Context, id uuid.UUID) error {
	v, err := b.look(ctx, id)
	switch {
	case err != nil:
		return err
	case v.missing:
		return sandbox.ErrGone
	}
	_, err = b.engine.ContainerRemove(ctx, v.id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	err = classify("remove container", err)
	if err != nil && !errors.Is(err, sandbox.ErrGone) && !errors.Is(err, sandbox.ErrBusy) {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, settleMost)
	defer cancel()
	for {
		now, err := b.look(limited, id)
		if limited.Err() == nil && err != nil {
			return err
		}
		if err == nil && (now.missing || now.id != v.id) {
			return nil
		}
		if pause(limited, settleEvery) != nil {
			return fmt.Errorf("removal is in progress: %w", sandbox.ErrBusy)
		}
	}
}

// lastWords is the end of a container's log, for the detail of a failure.
func (b *Backend) lastWords(ctx context.Context, id uuid.UUID) string {
	logs, err := b.engine.ContainerLogs(ctx, nameOf(id), client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Tail: tailLines})
	if err != nil {
		return ""
	}
	defer logs.Close()
	var text bytes.Buffer
	_, _ = stdcopy.StdCopy(&text, &text, logs)
	return clip(strings.TrimSpace(text.String()))
}

// pause waits for d, or returns why ctx ended.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
