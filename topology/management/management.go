// Package management lets a Client ask RabbitMQ's management API. It is a package of its own, so
// that programs without it link neither its client nor the judgement of policies.
package management

import (
	"context"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/management"
	"github.com/millpond-go/millpond/internal/policies"
)

// At is the management API at url, for topology.WithManagement.
//
// url is http or https with a user and its password, both percent-encoded, which never appear in an
// error. The user needs the tag management and permissions in the vhost, of which ^$ is enough. The
// alarms of nodes take the tag monitoring, and feature flags before RabbitMQ 4.0 administrator.
// https trusts the authorities of Connection.TLSConfig.
func At(url string) audit.Management {
	_, err := management.New(url, nil)
	return audit.Management{Err: err, Ask: func(ctx context.Context, of link.Config) audit.Manager {
		return policies.NewManager(ctx, url, of)
	}}
}
