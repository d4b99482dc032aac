// Package e2e has no code. Its tests are scenarios on a real broker: given this topology, when
// this fails, then this is on the broker. Package rig starts their services.
package e2e
