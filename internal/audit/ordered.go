package audit

import "fmt"

// RefuseOrder returns an error behind what if several consumers of the queue would be active at
// once, although the plan says that its messages are handled in order.
func (f *Facts) RefuseOrder(what string, p Plan) error {
	if p.Line == "" || f.Arguments["x-single-active-consumer"] == true {
		return nil
	}
	return fmt.Errorf("%s it has no single active consumer, so its messages cannot be handled in "+
		"order: declare a new queue with Queue.Arguments x-single-active-consumer true, because a "+
		"queue that exists cannot get it, or use a strategy other than topology.InOrder", what)
}
