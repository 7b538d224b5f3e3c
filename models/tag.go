package models

import (
	"context"
	"fmt"

	"github.com/google/uuid"
)

// TagCount is a tag and how many live automations carry it.
type TagCount struct {
	Tag   string `bun:"tag" json:"tag"`
	Count int    `bun:"count" json:"count"`
}

// Tags returns the tags of an organization's live automations, most used first, then by name.
func (s *Store) Tags(ctx context.Context, orgID uuid.UUID) ([]TagCount, error) {
	tags := []TagCount{}
	err := selectLive(s.db, (*Automation)(nil), orgID).
		ColumnExpr("t.value AS tag").
		ColumnExpr("count(*) AS count").
		Join("JOIN "+s.tagsOf()+" ON TRUE").
		GroupExpr("t.value").
		OrderExpr("count(*) DESC, t.value").
		Scan(ctx, &tags)
	if err != nil {
		return nil, fmt.Errorf("count tags: %w", err)
	}
	return tags, nil
}

// tagsOf is the table function that yields an automation's tags as t(value).
func (s *Store) tagsOf() string {
	if s.dialect == SQLite {
		return "json_each(a.tags) AS t"
	}
	return "jsonb_array_elements_text(a.tags) AS t(value)"
}
