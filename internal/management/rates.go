package management

import "context"

// Rates are messages a second of a queue, as the API has averaged them. They are nil where nothing
// has happened yet, or where the broker collects no statistics.
type Rates struct {
	// In counts messages that came into the queue, Out the deliveries to consumers.
	In, Out *float64
}

// QueueRates shows the rates of every queue of a vhost, in pages. If the list changes meanwhile, a
// queue may be shown twice.
func (a *API) QueueRates(ctx context.Context, vhost string, see func(string, Rates)) error {
	type rate struct {
		Rate *float64 `json:"rate"`
	}
	type queue struct {
		Name  string `json:"name"`
		Stats struct {
			In  rate `json:"publish_details"`
			Out rate `json:"deliver_get_details"`
		} `json:"message_stats"`
	}
	const columns = "name,message_stats.publish_details.rate,message_stats.deliver_get_details.rate"
	_, err := pages(ctx, a, columns, func(q queue) {
		see(q.Name, Rates{In: q.Stats.In.Rate, Out: q.Stats.Out.Rate})
	}, "queues", vhost)
	return err
}
