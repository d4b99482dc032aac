package testbroker

import (
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// evaluatorCode runs in each node beside RabbitMQ. It evaluates what arrives on a port of loopback.
//
//go:embed evaluator.erl
var evaluatorCode string

// evaluator returns the code for one node.
func (l layout) evaluator() string {
	port := filepath.Join(l.inside, "evaluator.port")
	return strings.NewReplacer("COOKIE", l.cookie, "PORTFILE", port).Replace(evaluatorCode)
}

// evaluating returns the argument with which the node's Erlang starts the evaluator. It has no
// space, because the script of RabbitMQ splits its arguments there.
func (l layout) evaluating() string {
	return fmt.Sprintf(`-eval file:eval("%s").`, filepath.Join(l.inside, "evaluator.erl"))
}

// evaluatorPort is the file in which the evaluator writes its port.
func (l layout) evaluatorPort() string { return filepath.Join(l.folder, "evaluator.port") }

// eval evaluates Erlang expressions on the node and returns their output and their value, in a
// minute at most. A node takes connections a moment before it runs: eval waits for that.
func (n *Node) eval(ctx context.Context, code string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, ctlLimit) // a frozen node never answers
	defer cancel()
	var port string
	err := await(ctx, n.server, "the node's evaluator", func() error {
		content, err := os.ReadFile(n.layout.evaluatorPort())
		port = strings.TrimSuffix(string(content), "\n")
		if err == nil && port == string(content) {
			err = errors.New("its port is not written yet")
		}
		return err
	})
	if err == nil {
		var answer string
		if answer, err = askEvaluator(ctx, port, n.layout.cookie+code); err == nil {
			if value, ok := strings.CutPrefix(answer, "value "); ok {
				return value, nil
			}
			err = errors.New(answer)
		}
	}
	return "", fmt.Errorf("evaluate %s: %w", code, err)
}

// askEvaluator sends one question. Question and answer have their length in front.
func askEvaluator(ctx context.Context, port, question string) (string, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp4", net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	length := binary.BigEndian.AppendUint32(nil, uint32(len(question)))
	if _, err := conn.Write(append(length, question...)); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	if err == nil && len(answer) < len(length) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return "", errors.Join(err, context.Cause(ctx))
	}
	return string(answer[len(length):]), nil
}
