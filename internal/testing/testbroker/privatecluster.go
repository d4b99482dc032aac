package testbroker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"
)

// clusterLimit bounds the start of a cluster. Its nodes join one after the other.
const clusterLimit = 4 * time.Minute

// Cluster is a RabbitMQ cluster on this machine, reachable from it only. Different goroutines may
// use different nodes. All errors name the node.
type Cluster struct {
	nodes  []*Node
	close  sync.Once
	closed error
}

// PrivateCluster starts a cluster of size nodes for this test alone. It ends with the test. The
// test is skipped when no broker is installed, as with [Private].
func PrivateCluster(tb testing.TB, size int, opts ...NodeOption) *Cluster {
	tb.Helper()
	in := requireInstallation(tb)
	c, err := startCluster(tb.Context(), in, size, opts)
	must(tb, "start a cluster", err)
	endsWith(tb, "cluster", c.Close)
	return c
}

// StartCluster starts a cluster for a program. The context bounds the start, which takes at most
// four minutes. The cluster lives until Close, or until the program ends.
func StartCluster(ctx context.Context, size int, opts ...NodeOption) (*Cluster, error) {
	in, err := findInstallation(os.Getenv("MILLPOND_BROKER"))
	if err != nil {
		return nil, err
	}
	return startCluster(ctx, in, size, opts)
}

func startCluster(
	ctx context.Context, in installation, size int, opts []NodeOption,
) (*Cluster, error) {
	return onFreePorts(ctx, clusterLimit, func(ctx context.Context) (*Cluster, error) {
		return launchCluster(ctx, in, size, opts)
	})
}

// launchCluster starts the first node, a cluster of one, and joins the others to it.
func launchCluster(
	ctx context.Context, in installation, size int, opts []NodeOption,
) (*Cluster, error) {
	if size < 1 {
		return nil, fmt.Errorf("a cluster of %d nodes: want at least 1", size)
	}
	first, err := startNode(ctx, in, opts)
	if err != nil {
		return nil, err
	}
	c := &Cluster{nodes: []*Node{first}}
	first.cluster = c
	for len(c.nodes) < size {
		if err := c.join(ctx, opts); err != nil {
			return nil, errors.Join(fmt.Errorf("node %d: %w", len(c.nodes)+1, err), c.Close())
		}
	}
	return c, nil
}

func (c *Cluster) join(ctx context.Context, opts []NodeOption) error {
	s := settings{pick: pickPorts}
	for _, opt := range opts {
		opt(&s)
	}
	var seeds []string
	for _, n := range c.nodes {
		seeds = append(seeds, n.layout.name)
	}
	l, err := c.nodes[0].layout.another(s, seeds)
	if err != nil {
		return err
	}
	n, err := newNode(l)
	if err != nil {
		return err
	}
	n.cluster, n.group = c, c.nodes[0].group
	c.nodes = append(c.nodes, n)
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	return n.launched(n.run(ctx))
}

// Size returns the number of nodes.
func (c *Cluster) Size() int { return len(c.nodes) }

// Node returns node i, counted from 0.
func (c *Cluster) Node(i int) *Node { return c.nodes[i] }

// URLs returns the nodes' addresses, in their order.
func (c *Cluster) URLs() []string {
	urls := make([]string, len(c.nodes))
	for i, n := range c.nodes {
		urls[i] = n.URL()
	}
	return urls
}

// Kill ends node i by SIGKILL and returns when it is gone.
func (c *Cluster) Kill(i int) error { return c.named(i, "kill", c.nodes[i].kill()) }

// Stop ends node i in good order and returns when it is gone.
func (c *Cluster) Stop(i int) error { return c.named(i, "stop", c.nodes[i].stop()) }

// Start starts the stopped or killed node i again, and returns when it can be used, within 90
// seconds. RabbitMQ waits for the nodes that were running when this one stopped: start them
// meanwhile.
func (c *Cluster) Start(ctx context.Context, i int) error {
	return c.named(i, "start", c.nodes[i].start(ctx))
}

// Freeze halts node i, by SIGSTOP. It returns when nothing of the node runs.
func (c *Cluster) Freeze(i int) error { return c.named(i, "freeze", c.nodes[i].freeze()) }

// Thaw lets node i go on. It does nothing to a node that is not frozen.
func (c *Cluster) Thaw(i int) error { return c.named(i, "thaw", c.nodes[i].server.signal(thaw)) }

// Running reports whether node i has a process, also a frozen one.
func (c *Cluster) Running(i int) bool { return !c.nodes[i].server.ended() }

// Alarm raises the memory alarm on node i, or clears it. While it is raised, no node reads from
// connections that publish.
func (c *Cluster) Alarm(ctx context.Context, i int, raised bool) error {
	mark := "0.4"
	if raised {
		mark = "0.00001"
	}
	_, err := c.nodes[i].RunCtl(ctx, "set_vm_memory_high_watermark", mark)
	return c.named(i, "alarm", err)
}

func (c *Cluster) named(i int, what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s node %d: %w", what, i+1, err)
}

// Close kills all nodes and removes their files. Further calls do nothing and return the same
// error.
func (c *Cluster) Close() error {
	c.close.Do(func() {
		var servers []*process
		for _, n := range c.nodes {
			servers = append(servers, n.server)
		}
		c.closed = c.nodes[0].group.end(servers...)
		for _, n := range c.nodes {
			c.closed = errors.Join(c.closed, n.output.Close())
		}
	})
	return c.closed
}
