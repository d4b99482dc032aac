package random

import "pgregory.net/rapid"

// DrawPlain draws a program from a small space, which is shrunk in seconds.
func DrawPlain(t *rapid.T) Program {
	p := Program{
		Strategy: "perqueue", Workers: 1, Policy: "constant", Delay: 50, Retries: 2,
		Messages: rapid.SliceOfN(outcomes(2), 1, 3).Draw(t, "messages"),
	}
	p.Steps = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Step {
		return Step{
			Do:    rapid.SampledFrom([]Action{KillService, StopService}).Draw(t, "do"),
			Calls: rapid.IntRange(0, 3).Draw(t, "calls"),
		}
	}), 0, 2).Draw(t, "steps")
	return p
}

// outcomes draws the outcomes of up to most calls.
func outcomes(most int) *rapid.Generator[[]Outcome] {
	return rapid.SliceOfN(rapid.SampledFrom(Outcomes[1:]), 0, most)
}

// Draw draws a program. The simplest values come first, so that a failure shrinks towards them: one
// message, no step, PerQueue, a constant policy.
func Draw(t *rapid.T, slow bool) Program {
	p := Program{
		Strategy: rapid.SampledFrom([]string{"perqueue", "shared", "perattempt", "levels"}).
			Draw(t, "strategy"),
		Classic: rapid.Bool().Draw(t, "classic"),
		Workers: rapid.IntRange(1, 3).Draw(t, "workers"),
		Policy: rapid.SampledFrom([]string{"constant", "linear", "exponential", "list"}).
			Draw(t, "policy"),
		Delay:   rapid.SampledFrom([]int{50, 100, 200}).Draw(t, "delay"),
		Retries: rapid.IntRange(1, 4).Draw(t, "retries"),
	}
	p.Via = (p.Strategy == "perqueue" || p.Strategy == "shared") && rapid.Bool().Draw(t, "via")
	p.Messages = rapid.SliceOfN(outcomes(5), 1, 5).Draw(t, "messages")
	p.Steps = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Step {
		actions := Quick
		// A tenth of the steps, because each takes seconds.
		if slow && rapid.IntRange(0, 9).Draw(t, "slow") == 9 {
			actions = Slow
		}
		return Step{
			Do:    rapid.SampledFrom(actions).Draw(t, "do"),
			Calls: rapid.IntRange(0, 8).Draw(t, "calls"),
			Pause: rapid.SampledFrom([]int{0, 20, 100, 300}).Draw(t, "pause"),
			Pick:  rapid.IntRange(0, 7).Draw(t, "pick"),
		}
	}), 0, 4).Draw(t, "steps")
	return p
}
