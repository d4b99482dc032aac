package link

import (
	"errors"
	"fmt"
	"sync"
)

// ErrOtherCluster is the reason why a connection was not kept: other connections
// of the same Cluster lead to another RabbitMQ cluster.
var ErrOtherCluster = errors.New("another RabbitMQ cluster")

// Cluster keeps connections on one RabbitMQ cluster, by the cluster_name that
// the broker sends. Vhosts of the same name exist on many clusters, and a message
// that waits on another one never comes back. When no connection is left, the next
// one may lead anywhere. A nil Cluster admits every connection. Its methods may be
// called from many goroutines.
type Cluster struct {
	mu          sync.Mutex
	name        string
	connections int
}

// enter admits a connection to the cluster of that name, or returns
// ErrOtherCluster. A broker that sends no name is admitted.
func (c *Cluster) enter(name string) error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.connections > 0 && name != "" && c.name != "" && name != c.name {
		return fmt.Errorf("%w: the broker's cluster_name is %q, that of the other connections is %q", ErrOtherCluster, name, c.name)
	}
	if c.connections == 0 || c.name == "" {
		c.name = name
	}
	c.connections++
	return nil
}

// leave says that a connection which was admitted has ended.
func (c *Cluster) leave() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.connections--
}
