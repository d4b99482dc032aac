package management

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"regexp"
	"strconv"
)

// Names returns at most 100 names of a vhost that begin with prefix. kind is "queues" or
// "exchanges". The broker searches, so that a vhost with many queues costs no long answer.
func (a *API) Names(ctx context.Context, kind, vhost, prefix string) ([]string, error) {
	return a.names(ctx, kind, vhost, prefix, 1, 100)
}

// AllNames is Names without a limit. A name that is declared or deleted meanwhile may be missing.
func (a *API) AllNames(ctx context.Context, kind, vhost, prefix string) (all []string, err error) {
	for number := 1; ; number++ {
		names, err := a.names(ctx, kind, vhost, prefix, number, pageSize)
		if errors.Is(err, errRefused) && number > 1 {
			return all, nil // there is no such page
		}
		all = append(all, names...)
		if err != nil || len(names) < pageSize {
			return all, err
		}
	}
}

func (a *API) names(
	ctx context.Context, kind, vhost, prefix string, number, size int,
) ([]string, error) {
	query := url.Values{
		"page": {strconv.Itoa(number)}, "page_size": {strconv.Itoa(size)}, "columns": {"name"},
		"use_regex": {"true"}, "name": {"^" + regexp.QuoteMeta(prefix)},
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
