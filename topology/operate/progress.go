package operate

// Progress is how far a call has come, and at its end what it has done.
type Progress struct {
	// Total is how many messages were in the queue at the beginning.
	Total int
	// Seen of them were looked at.
	Seen int
	// Chosen by the filter.
	Chosen int
	// Done: moved and confirmed in their queue, or thrown away. Less than Chosen
	// while publishes are under way, and in a dry run.
	Done int
	// Foreign were chosen, but not taken, for their notes say that they belong to
	// another queue.
	Foreign int
	// Refused by the edit hook, or too large to be sent with what a replay adds:
	// still in the queue.
	Refused int
}
