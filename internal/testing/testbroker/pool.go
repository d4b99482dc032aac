package testbroker

import (
	"context"
	"errors"
	"sync"
	"testing"
)

// The nodes of this test binary that were lent to a test. They end with [Main].
var private, managed pool

// pool lends nodes to one test at a time: a start takes more processor time than most tests do. A
// node comes back when its test has changed nothing but vhosts and users, and all of these are then
// made anew. A node that was stopped, frozen, or told anything else by rabbitmqctl ends with its
// test.
type pool struct {
	open bool // there is a [Main] that ends the nodes
	sync.Mutex
	free []*Node
}

// lend returns a free node, or starts one.
func (p *pool) lend(tb testing.TB, start func() (*Node, error)) *Node {
	tb.Helper()
	n := p.take()
	if n == nil {
		var err error
		n, err = start()
		must(tb, "start a node", err)
	}
	endsWith(tb, "node", func() error { return p.giveBack(n) })
	return n
}

func (p *pool) take() *Node {
	p.Lock()
	defer p.Unlock()
	if len(p.free) == 0 {
		return nil
	}
	n := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	return n
}

func (p *pool) giveBack(n *Node) error {
	if !p.open || n.changed.Load() || n.server.ended() {
		return n.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), ctlLimit)
	defer cancel()
	if _, err := n.eval(ctx, asNew); err != nil {
		return errors.Join(err, n.Close())
	}
	p.Lock()
	defer p.Unlock()
	p.free = append(p.free, n)
	return nil
}

func (p *pool) close() error {
	p.Lock()
	defer p.Unlock()
	var errs []error
	for _, n := range p.free {
		errs = append(errs, n.Close())
	}
	p.free = nil
	return errors.Join(errs...)
}

// asNew is evaluated on a node that comes back.
const asNew = `
	By = <<"test">>, All = <<".*">>,
	[rabbit_networking:close_connection(C, "the test is over") || C <- rabbit_networking:connections()],
	[ok = rabbit_vhost:delete(V, By) || V <- rabbit_vhost:list_names()],
	[ok = rabbit_auth_backend_internal:delete_user(U, By) ||
		User <- rabbit_auth_backend_internal:list_users(), {user, U} <- User, U =/= <<"guest">>],
	ok = rabbit_vhost:add(<<"/">>, <<"Default virtual host">>, [], By),
	ok = rabbit_auth_backend_internal:set_permissions(<<"guest">>, <<"/">>, All, All, All, By),
	[] = rabbit_alarm:get_alarms().`
