package consumer

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// ackedBy is the broker's side of one channel. It settles the deliveries that an ack names, and
// refuses an ack for a delivery that is settled.
type ackedBy struct {
	t     *testing.T
	open  map[uint64]bool
	acked map[uint64]bool
	sent  int
}

func (b *ackedBy) send(tag uint64, multiple bool) error {
	require.True(b.t, b.open[tag], "%d is not open: the broker would close the channel", tag)
	b.sent++
	for one := range b.open {
		if one == tag || multiple && one < tag {
			delete(b.open, one)
			b.acked[one] = true
		}
	}
	return nil
}

func newAcks(t *testing.T, deliveries uint64) (*acks, *ackedBy) {
	b := &ackedBy{t: t, open: map[uint64]bool{}, acked: map[uint64]bool{}}
	a := &acks{send: b.send, most: 1 << 10}
	for tag := uint64(1); tag <= deliveries; tag++ {
		b.open[tag] = true
		a.arrived(tag)
	}
	return a, b
}

// Given deliveries that end at the same time, when they are the oldest ones, then one ack settles
// all of them. No ack settles another delivery.
func TestARunOfDeliveriesIsAckedAtOnce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name           string
		wanted, nacked []uint64
		sent           int
	}{
		{"one", []uint64{1}, nil, 1},
		{"all", []uint64{3, 1, 4, 2, 5}, nil, 1},
		{"a run and one behind a gap", []uint64{1, 2, 4}, nil, 2},
		{"none of the oldest", []uint64{3, 4}, nil, 2},
		{"a run over one that was given back", []uint64{1, 3}, []uint64{2}, 1},
		{"behind one that was given back", []uint64{2, 3}, []uint64{1}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a, b := newAcks(t, 5)
			for _, tag := range c.nacked {
				delete(b.open, tag)
				a.nacked(tag)
			}
			for i, tag := range c.wanted {
				require.Equal(t, i == 0, a.want(tag, nil), "the first one flushes")
			}
			require.NoError(t, a.flush())
			require.Len(t, b.acked, len(c.wanted))
			for _, tag := range c.wanted {
				require.True(t, b.acked[tag])
			}
			require.Equal(t, c.sent, b.sent)
		})
	}
}

// Deliveries end in any order, in groups of any size. Each is settled once, as it ended, and the
// memory stays small while the oldest one is held.
func TestAcksInAnyOrder(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 0))
		a, b := newAcks(t, 0)
		var inHand []uint64
		nacked := map[uint64]bool{}
		for tag := uint64(1); tag <= 2000; tag++ {
			b.open[tag] = true
			a.arrived(tag)
			if tag == 1 {
				continue // held until the end
			}
			inHand = append(inHand, tag)
			for len(inHand) > 0 && (len(inHand) >= 64 || random.IntN(3) == 0) {
				i := random.IntN(len(inHand))
				ended := inHand[i]
				inHand = append(inHand[:i], inHand[i+1:]...)
				if random.IntN(10) == 0 {
					nacked[ended] = true
					delete(b.open, ended)
					a.nacked(ended)
				} else if a.want(ended, nil); random.IntN(2) == 0 {
					require.NoError(t, a.flush())
				}
			}
			require.Less(t, len(a.open), 300)
		}
		for _, tag := range append(inHand, 1) {
			a.want(tag, nil)
		}
		require.NoError(t, a.flush())
		require.Empty(t, b.open)
		require.Len(t, b.acked, 2000-len(nacked))
	}
}
