package tracing

import "testing"

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
		if got := name(test.exchange, test.key, test.queue); got != test.want {
			t.Errorf("%q %q %q: %s, want %s", test.exchange, test.key, test.queue, got, test.want)
		}
	}
}
