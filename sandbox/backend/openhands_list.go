package backend

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"

	"automation/models"
	"automation/sandbox"
)

// searchPages bounds a search that does not end: a page id that the API does not understand starts it anew, silently.
const searchPages = 200

// List shows the boxes of one user, whose key shows no others. There are no labels, so that without an owner it is unsupported.
func (b *openhands) List(ctx context.Context, label sandbox.Label) iter.Seq2[sandbox.Observation, error] {
	return func(yield func(sandbox.Observation, error) bool) {
		if label.Owner == (sandbox.Owner{}) {
			yield(sandbox.Observation{}, fmt.Errorf("list without an owner: %w", errors.ErrUnsupported))
			return
		}
		page := ""
		for seen := map[string]bool{}; !seen[page] && len(seen) < searchPages; {
			seen[page] = true
			boxes, next, err := b.search(ctx, label.Owner, page)
			if err != nil {
				yield(sandbox.Observation{}, fmt.Errorf("search boxes: %w", err))
				return
			}
			for _, box := range boxes {
				if !yield(box.listed(), nil) {
					return
				}
			}
			if next == "" {
				return
			}
			page = next
		}
		yield(sandbox.Observation{}, errors.New("search boxes: the pages do not end"))
	}
}

// search reads one page of a user's boxes.
func (b *openhands) search(ctx context.Context, owner sandbox.Owner, page string) (boxes []*cloudBox, next string, err error) {
	query := url.Values{"limit": {"100"}}
	if page != "" {
		query.Set("page_id", page)
	}
	var answer struct {
		Items *[]*cloudBox `json:"items"`
		Next  *string      `json:"next_page_id"`
	}
	err = b.call(ctx, owner, request{method: http.MethodGet, path: "/api/v1/sandboxes/search", query: query, within: lifecycleWithin}, &answer)
	switch {
	case errors.Is(err, sandbox.ErrGone): // the route is not there; no box is gone
		told, _ := errors.AsType[*sandbox.ProviderError](err)
		return nil, "", fmt.Errorf("no such route: %w", told)
	case err != nil:
		return nil, "", err
	case answer.Items == nil:
		return nil, "", errors.New("the answer has no items")
	}
	for _, box := range *answer.Items {
		if box != nil && plain(box.ID) {
			boxes = append(boxes, box)
		}
	}
	if answer.Next != nil {
		next = *answer.Next
	}
	return boxes, next, nil
}

// listed is what a list says of a box. One whose state has an unknown name is there all the same.
func (c *cloudBox) listed() sandbox.Observation {
	obs, err := c.observation()
	if err != nil {
		obs = sandbox.Observation{State: models.SeenFailed, Identity: sandbox.Identity{Kind: models.IdentityBox, ProviderID: c.ID}}
	}
	obs.CreatedAt = c.CreatedAt
	return obs
}
