// Package page is a web page for the engineer on call: the queues of a virtual host, dead letters
// by cause, waiting and stranded messages, and the findings of Verify and of the doctor. It is what
// `millpond serve` runs, and an http.Handler for a service:
//
//	p, err := page.New(page.Config{URL: amqpURL, BasePath: "/ops/millpond"})
//	mux.Handle("/ops/millpond/", p)
//	defer p.Close()
//
// All of it is rendered on the server. Reading needs no script; one script adds movement. It asks
// no other host for anything.
//
// # Looks
//
// One look at the broker serves all open pages. While a page is open and visible, the management
// API is asked every few seconds; otherwise every 15 seconds, because charts need it. Messages are
// looked at only when a person asks, because a look takes them from their queue for a moment. Every
// page says how old its data are.
//
// # Security
//
// Texts of messages are shown as text. The page answers only requests that name a host of
// Config.Hosts, localhost or an IP address; it takes no form from another site; and it asks for an
// account if there are any, or Config.Authorize. Without them everybody who reaches the address may
// read, so listen at the loopback address alone, as `millpond serve` does.
package page
