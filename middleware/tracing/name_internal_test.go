package tracing

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestNameOfTheDestination(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ exchange, key, queue, want string }{
		{"shop", "order.created", "billing", "shop:order.created:billing"},
		{"shop", "", "billing", "shop:billing"},
		{"", "orders", "orders", "orders"},
		{"shop", "orders", "orders", "shop:orders"},
		{"", "order.created", "billing", "order.created:billing"},
		{"orders", "orders", "orders", "orders:orders"},
	} {
		assert.Equal(t, test.want, name(test.exchange, test.key, test.queue))
	}
}
