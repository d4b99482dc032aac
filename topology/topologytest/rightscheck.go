package topologytest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func permissionsSuffice(tr *trial, s *suite) {
	if s.ManagementURL == "" {
		tr.Skipf("Config.ManagementURL is empty: set the URL of the management API, with the name of " +
			"an administrator")
	}
	uri, err := amqp.ParseURI(s.URL)
	tr.Must(err, "read Config.URL")
	delays := []time.Duration{200 * time.Millisecond}
	b := s.inbox(tr, "rights", delays)
	rights := b.plan.Permissions(true)
	user := s.queue("user")
	path := "/api/users/" + url.PathEscape(user)
	tr.Must(s.manage(http.MethodPut, path, map[string]string{"password": user, "tags": ""}),
		"add a user with Config.ManagementURL")
	tr.Cleanup(func() error { return s.manage(http.MethodDelete, path, nil) })
	tr.Must(s.manage(http.MethodPut,
		"/api/permissions/"+url.PathEscape(uri.Vhost)+"/"+url.PathEscape(user), map[string]string{
			"configure": rights.Configure, "write": rights.Write, "read": rights.Read,
		}), "grant permissions with Config.ManagementURL")

	of, err := url.Parse(s.URL)
	tr.Must(err, "read Config.URL")
	of.User = url.UserPassword(user, user)
	s.serve(tr, of.String(), backoffList(delays), b)
	s.read(tr, b.plan.Dead)
	msg, id := s.text(tr, "1")
	s.send(tr, b, msg, script{2, func(int) error { return errClosed }})
	s.awaitCalls(tr, b, id, planned(b.plan, delays[0]))
	s.awaitLetter(tr, id, "dead-letter queue")
}

// manage calls the management API.
func (s *suite) manage(method, path string, object any) error {
	base, err := url.Parse(s.ManagementURL)
	if err != nil {
		return errors.New("the URL is invalid") // It may hold a password.
	}
	user := base.User
	base.User = nil
	body, err := json.Marshal(object)
	if err != nil {
		return err
	}
	address := strings.TrimSuffix(base.String(), "/") + path
	req, err := http.NewRequest(method, address, bytes.NewReader(body))
	if err != nil {
		return err
	}
	password, _ := user.Password()
	req.SetBasicAuth(user.Username(), password)
	client := http.Client{Timeout: s.Patience}
	defer client.CloseIdleConnections()
	answer, err := client.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("%s %s: %s: the user must be an administrator", method, address, answer.Status)
	}
	return nil
}
