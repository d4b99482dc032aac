package audit

import "fmt"

// RefuseOrder returns an error behind what if the queue cannot be handled in order, although the
// plan says so: several consumers would be active at once, or its delivery limit is too low.
func (f *Facts) RefuseOrder(what string, p Plan) error {
	if p.Line == "" {
		return nil
	}
	if limit, _ := f.DeliveryLimit(); limit < DefaultDeliveryLimit {
		return fmt.Errorf("%s its delivery limit of %d is too low for messages that are handled in "+
			"order, because each end of a process counts for every message that it had: declare the queue "+
			"with Queue.Arguments x-delivery-limit of at least %d, or raise the policy", what, limit,
			DefaultDeliveryLimit)
	}
	if f.Arguments["x-single-active-consumer"] == true {
		return nil
	}
	return fmt.Errorf("%s it has no single active consumer, so its messages cannot be handled in "+
		"order: declare a new queue with Queue.Arguments x-single-active-consumer true, because a "+
		"queue that exists cannot get it, or use a strategy other than inorder.Strategy", what)
}
