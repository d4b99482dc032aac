package management

import (
	"context"
	"encoding/json"
	"io"
	"net/url"
	"regexp"
)

// Names returns at most 100 names of a vhost that begin with prefix. kind is "queues" or
// "exchanges". The broker searches, so that a vhost with many queues costs no long answer.
func (a *API) Names(ctx context.Context, kind, vhost, prefix string) ([]string, error) {
	query := url.Values{
		"page": {"1"}, "page_size": {"100"}, "columns": {"name"}, "use_regex": {"true"},
		"name": {"^" + regexp.QuoteMeta(prefix)},
	}
	var page struct {
		Items []struct {
			Name string `json:"name"`
		} `json:"items"`
	}
	err := a.ask(ctx, query, func(body io.Reader) error {
		return json.NewDecoder(io.LimitReader(body, maxAnswer)).Decode(&page)
	}, kind, vhost)
	names := make([]string, len(page.Items))
	for i, item := range page.Items {
		names[i] = item.Name
	}
	return names, err
}
