package header

import "time"

// BrakeState is the state of an outage brake: a budget.Budget with Brake. It is also the JSON
// body of the broker's messages about the brake; docs/wire.md has them. The zero value is a brake
// that was never stopped.
type BrakeState struct {
	// Name of the brake. All instances whose budgets have this name stop and start together.
	Name string `json:"name"`
	// Stopped says that the instances do not consume.
	Stopped bool `json:"stopped"`
	// Since is the time of the last stop or start.
	Since time.Time `json:"since,omitzero"`
	// By is the instance that has stopped or started the brake, "name@host/pid", or the operator.
	By string `json:"by,omitempty"`
	// Cause says why: failures in numbers, or the words of the operator.
	Cause string `json:"cause,omitempty"`
	// Manual says that an operator has stopped the brake. No instance probes before Until.
	Manual bool `json:"manual,omitempty"`
	// Until is when the stop of an operator ends and probing begins. Zero without Manual.
	Until time.Time `json:"until,omitzero"`
	// Prober is the instance that probes. It is empty while no instance does.
	Prober string `json:"prober,omitempty"`
	// Rate is how many messages a second the instances have handled before the stop, all together.
	// It is 0 if that is not known.
	Rate float64 `json:"rate,omitempty"`
	// Members is the number of instances that are known to share the rate.
	Members int `json:"members,omitempty"`
	// Unknown says that instances take the brake for stopped, and none of them shows the token that
	// keeps it stopped. Only topology/operate sets it.
	Unknown bool `json:"unknown,omitempty"`
}
