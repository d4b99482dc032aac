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
var private, managed = newPool(), newPool()

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
	open   bool          // there is a [Main] that ends the nodes
	places chan struct{} // one for each test that has a node

	mu   sync.Mutex
	lent map[string]int
	free []*Node
}

func newPool() *pool { return &pool{places: make(chan struct{}, mostLent), lent: map[string]int{}} }

// lend returns a free node, or starts one. A test that has a node already gets another at once.
func (p *pool) lend(tb testing.TB, start func() (*Node, error)) (n *Node) {
	tb.Helper()
	test, _, _ := strings.Cut(tb.Name(), "/")
	if p.count(test, 1) == 1 {
		select {
		case p.places <- struct{}{}:
			tb.Cleanup(func() { <-p.places })
		case <-time.After(mostWait):
		}
	}
	p.mu.Lock()
	if last := len(p.free) - 1; last >= 0 {
		n, p.free = p.free[last], p.free[:last]
	}
	p.mu.Unlock()
	if n == nil {
		var err error
		n, err = start()
		must(tb, "start a node", err)
	}
	endsWith(tb, "node", func() error {
		p.count(test, -1)
		return p.giveBack(n)
	})
	return n
}

// count changes the number of nodes that a test has.
func (p *pool) count(test string, by int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lent[test] += by
	return p.lent[test]
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

// asNew is evaluated on a node that comes back. The broker removes the files of a vhost some time
// after the vhost, and a vhost of that name must not begin before.
const asNew = `
	By = <<"test">>, All = <<".*">>,
	[catch rabbit_networking:close_connection(C, "the test is over") || % or it ends by itself
		C <- rabbit_networking:connections()],
	[ok = rabbit_vhost:delete(V, By) || V <- rabbit_vhost:list_names()],
	[ok = rabbit_auth_backend_internal:delete_user(U, By) ||
		User <- rabbit_auth_backend_internal:list_users(), {user, U} <- User, U =/= <<"guest">>],
	Gone = fun(Again, Tries) ->
		case filelib:is_dir(rabbit_vhost:msg_store_dir_path(<<"/">>)) of
			true when Tries > 0 -> timer:sleep(50), Again(Again, Tries - 1);
			_ -> ok
		end
	end,
	Gone(Gone, 200),
	ok = rabbit_vhost:add(<<"/">>, <<"Default virtual host">>, [], By),
	ok = rabbit_auth_backend_internal:set_permissions(<<"guest">>, <<"/">>, All, All, All, By),
	[] = rabbit_alarm:get_alarms().`
