package docker

import (
	"context"
	"iter"
	"os"
	"strings"

	"github.com/google/uuid"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"automation/models"
	"automation/sandbox"
)

// List yields the deployment's boxes: its containers in all states, and the boxes that have none just now.
func (b *Backend) List(ctx context.Context, label sandbox.Label) iter.Seq2[sandbox.Observation, error] {
	return func(yield func(sandbox.Observation, error) bool) {
		containers, err := b.containers(ctx, label.Deployment)
		if err != nil {
			yield(sandbox.Observation{}, err)
			return
		}
		shown := map[uuid.UUID]bool{}
		for id, v := range containers {
			r, err := b.record(id)
			if err != nil {
				r = v.record(id)
			}
			shown[id] = true
			wanted := label.WorkspaceID == uuid.Nil || label.WorkspaceID == id
			if wanted && !yield(b.listed(r, v), nil) {
				return
			}
		}
		for _, r := range b.records(label) {
			if !shown[r.WorkspaceID] && !yield(b.observe(r, view{missing: true}), nil) {
				return
			}
		}
	}
}

// listed is observe for what a list shows of a container, which is not when it started.
func (b *Backend) listed(r record, v view) sandbox.Observation {
	o := b.observe(r, v)
	if v.state.Status == container.StateRunning && o.State == models.SeenProvisioning {
		o.State = models.SeenRunning
	}
	if o.State == models.SeenFailed && v.state.Status == container.StateExited {
		o.State, o.Detail = models.SeenSuspended, ""
	}
	return o
}

// containers are those with the label of a deployment, by workspace id.
func (b *Backend) containers(ctx context.Context, deployment uuid.UUID) (map[uuid.UUID]view, error) {
	answer, err := b.engine.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: deploymentFilter(deployment)})
	if err != nil {
		return nil, classify("list containers", err)
	}
	found := map[uuid.UUID]view{}
	for _, c := range answer.Items {
		id, err := uuid.Parse(c.Labels[labelWorkspace])
		if err == nil && c.Labels[labelDeployment] == deployment.String() {
			found[id] = view{id: c.ID, labels: c.Labels, state: container.State{Status: c.State}}
		}
	}
	return found, nil
}

func deploymentFilter(deployment uuid.UUID) client.Filters {
	return client.Filters{}.Add("label", labelDeployment+"="+deployment.String())
}

// records are those of the deployment that can be read, and are asked for.
func (b *Backend) records(label sandbox.Label) []record {
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		return nil
	}
	var all []record
	for _, e := range entries {
		name, is := strings.CutSuffix(e.Name(), recordSuffix)
		id, err := uuid.Parse(name)
		if !is || err != nil || label.WorkspaceID != uuid.Nil && label.WorkspaceID != id {
			continue
		}
		if r, err := b.record(id); err == nil && r.Deployment == label.Deployment {
			all = append(all, r)
		}
	}
	return all
}
