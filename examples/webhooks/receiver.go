package main

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/millpond-go/millpond/examples/internal/webhook"
)

// receiver is the other side: a server on loopback that answers as planned and
// enters every request in the ledger.
type receiver struct {
	ledger *ledger
	// seen is called with the line of each request.
	seen   func(line string)
	server *http.Server
	url    string
	ended  chan error
}

func startReceiver(l *ledger, seen func(line string)) (*receiver, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &receiver{ledger: l, seen: seen, url: "http://" + listener.Addr().String() + "/hooks/",
		ended: make(chan error, 1)}
	r.server = &http.Server{Handler: r}
	go func() { r.ended <- r.server.Serve(listener) }()
	return r, nil
}

// ServeHTTP enters the request before it is answered: what the sender knows the ledger knows.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	at := time.Now()
	// Only when the body is read the server notices that a sender gives up.
	_, _ = io.Copy(io.Discard, req.Body)
	attempt, _ := strconv.Atoi(req.Header.Get(webhook.AttemptHeader))
	sent, err := time.Parse(time.RFC3339Nano, req.Header.Get(webhook.SentHeader))
	if err != nil {
		sent = at
	}
	a, line := r.ledger.request(req.Header.Get(webhook.IDHeader), attempt, sent, at)
	r.seen(line)

	switch {
	case a.hang:
		<-req.Context().Done()
	case a.status == 0:
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_ = conn.Close()
		}
	default:
		setRetryAfter(w.Header(), a, at)
		w.WriteHeader(a.status)
	}
}

func setRetryAfter(header http.Header, a answer, now time.Time) {
	now = now.UTC()
	switch {
	case a.date:
		header.Set("Date", now.Format(http.TimeFormat))
		header.Set("Retry-After", now.Add(a.after).Format(http.TimeFormat))
	case a.after > 0:
		header.Set("Retry-After", strconv.Itoa(int(a.after/time.Second)))
	}
}

func (r *receiver) close() error {
	err := r.server.Close()
	if ended := <-r.ended; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}
