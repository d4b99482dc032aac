package consumer

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// entered takes a place for a new delivery.
func entered(p *places) *standing {
	p.take()
	return &standing{at: inPlace}
}

// Given two places, when the copy of a message is written, then its place is free. When its
// hand-over is held, it keeps a place until it is settled.
func TestPlacesOfHandOvers(t *testing.T) {
	t.Parallel()
	var held atomic.Int64
	p := newPlaces(2, &held)
	require.True(t, p.areEmpty())
	a, b := entered(p), entered(p)
	require.False(t, p.areFree(), "two handlers run")
	require.True(t, p.written(a))
	require.True(t, p.areFree(), "a copy is written")
	<-p.freed
	require.False(t, p.written(a), "it has left its place")
	c := entered(p)
	require.False(t, p.areFree())

	p.hold(a)
	require.EqualValues(t, 1, held.Load())
	require.False(t, p.written(b), "another hand-over is held")
	p.leave(c)
	require.False(t, p.areFree(), "b and the held one")
	p.hold(b)
	p.hold(b) // every failed try
	require.EqualValues(t, 2, held.Load())
	p.leave(a)
	require.True(t, p.areFree())
	p.leave(b)
	p.leave(b)
	require.EqualValues(t, 0, held.Load())
	require.True(t, p.areEmpty())
	p.hold(&standing{}) // of a delivery that never had a place
	require.EqualValues(t, 0, held.Load())
}

// Given one place, when the confirm of a written copy is late, then no handler starts until it
// has come. The others behind the handlers are held with it, each when it is late.
func TestLateConfirmsTakeThePlacesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var held atomic.Int64
		p := newPlaces(1, &held)
		a := entered(p)
		p.written(a)
		time.Sleep(lateConfirm / 2)
		b := entered(p)
		p.written(b)
		require.True(t, p.areFree())
		time.Sleep(lateConfirm / 2)
		require.False(t, p.areFree(), "a is late")
		require.EqualValues(t, 1, held.Load())
		time.Sleep(lateConfirm / 2)
		require.False(t, p.areFree())
		require.EqualValues(t, 2, held.Load())
		p.leave(a)
		require.False(t, p.areFree(), "b is late")
		p.leave(b)
		require.True(t, p.areFree())
	})
}

// Hand-overs that end in any order leave no trace.
func TestHandOversEndInAnyOrder(t *testing.T) {
	t.Parallel()
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {1, 2, 0}} {
		var held atomic.Int64
		p := newPlaces(1, &held)
		var all []*standing
		for range 3 {
			s := entered(p)
			p.written(s)
			all = append(all, s)
		}
		for _, i := range order {
			p.leave(all[i])
		}
		require.True(t, p.areEmpty())
		require.Equal(t, handovers{}, p.behind)
	}
}
