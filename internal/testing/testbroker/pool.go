package testbroker

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"
)

// The nodes that the tests of this binary share, one after the other. They end with [Main].
var private, managed pool

const (
	// mostLent is the number of tests with a node of a pool from which the next one waits.
	mostLent = 3
	// mostWait bounds that wait: the tests that have a node may wait for the place of this one.
	mostWait = 20 * time.Second
)

// pool lends a node to one test at a time, because a start takes more processor time than most
// tests do. A node comes back when nothing but its vhosts and users has changed, and all of these
// are then made anew. Another one ends with its test.
type pool struct {
	open bool // there is a [Main] that ends the nodes

	mu   sync.Mutex
	back chan struct{} // closed when a node has come back; nil if no test waits for one
	lent map[string]int
	free []*Node
}

// lend returns a free node, or starts one. A test that has a node already gets another at once.
func (p *pool) lend(tb testing.TB, start func() (*Node, error)) *Node {
	tb.Helper()
	test, _, _ := strings.Cut(tb.Name(), "/")
	n := p.take(test)
	if n == nil {
		var err error
		if n, err = start(); err != nil {
			p.end(test)
			must(tb, "start a node", err)
		}
	}
	endsWith(tb, "node", func() error {
		defer p.end(test)
		return p.giveBack(n)
	})
	return n
}

// take returns a free node, or nil if the test may start one.
func (p *pool) take(test string) *Node {
	p.mu.Lock()
	defer p.mu.Unlock()
	overdue := time.After(mostWait)
	for waits := true; waits && p.lent[test] == 0 && len(p.lent) >= mostLent; {
		if p.back == nil {
			p.back = make(chan struct{})
		}
		back := p.back
		p.mu.Unlock()
		select {
		case <-back:
		case <-overdue:
			waits = false
		}
		p.mu.Lock()
	}
	if p.lent == nil {
		p.lent = map[string]int{}
	}
	p.lent[test]++
	if len(p.free) == 0 {
		return nil
	}
	n := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	return n
}

// end lets another test have a node.
func (p *pool) end(test string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lent[test]--; p.lent[test] == 0 {
		delete(p.lent, test)
	}
	if p.back != nil {
		close(p.back)
		p.back = nil
	}
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
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, n)
	return nil
}

func (p *pool) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
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
	[rabbit_networking:close_connection(C, "the test is over") ||
		C <- rabbit_networking:connections()],
	[ok = rabbit_vhost:delete(V, By) || V <- rabbit_vhost:list_names()],
	[ok = rabbit_auth_backend_internal:delete_user(U, By) ||
		User <- rabbit_auth_backend_internal:list_users(), {user, U} <- User, U =/= <<"guest">>],
	ok = rabbit_vhost:add(<<"/">>, <<"Default virtual host">>, [], By),
	ok = rabbit_auth_backend_internal:set_permissions(<<"guest">>, <<"/">>, All, All, All, By),
	[] = rabbit_alarm:get_alarms().`
