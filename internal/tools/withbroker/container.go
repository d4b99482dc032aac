//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	defaultImage   = "4.0"
	pullLimit      = 10 * time.Minute // the first start downloads the image
	containerPort  = "5672/tcp"
	containerCheck = 200 * time.Millisecond
)

// container is a RabbitMQ that Docker runs. It ends when its standard input is closed, and so also
// when this process is killed.
type container struct {
	name    string
	address string
	version string
	cmd     *exec.Cmd
	held    io.Closer
	output  bytes.Buffer
	done    chan struct{}
}

func dockerRuns(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	return exec.CommandContext(ctx, "docker", "info").Run() == nil
}

func startContainer(ctx context.Context) (*container, error) {
	version := os.Getenv("MILLPOND_BROKER")
	if version == "" {
		version = defaultImage
	}
	ctx, cancel := context.WithTimeout(ctx, pullLimit)
	defer cancel()
	c := &container{
		name: fmt.Sprintf("millpond-%d-%d", os.Getpid(), time.Now().Unix()), done: make(chan struct{}),
	}
	c.cmd = exec.Command("docker", "run", "--rm", "--interactive", "--name", c.name, "--publish",
		"127.0.0.1::5672",
		"rabbitmq:"+version, "sh", "-c",
		"docker-entrypoint.sh rabbitmq-server </dev/null & cat >/dev/null")
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // out of reach of the terminal's ^C
	c.cmd.Stdout, c.cmd.Stderr = &c.output, &c.output
	held, err := c.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	c.held = held
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(c.done)
		_ = c.cmd.Wait()
	}()
	if err := c.ready(ctx); err != nil {
		return nil, errors.Join(err, c.stop())
	}
	return c, nil
}

func (c *container) url() string { return "amqp://guest:guest@" + c.address + "/" }

// ready waits until the container's port is known and speaks AMQP.
func (c *container) ready(ctx context.Context) error {
	ticker := time.NewTicker(containerCheck)
	defer ticker.Stop()
	for {
		err := c.greet(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-c.done:
			return fmt.Errorf("the container has ended (%s):\n%s", c.cmd.ProcessState, c.output.String())
		case <-ctx.Done():
			return fmt.Errorf("the container is not ready: %w: %w", ctx.Err(), err)
		case <-ticker.C:
		}
	}
}

func (c *container) greet(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "docker", "port", c.name, containerPort).Output()
	if err != nil {
		return err
	}
	c.address, _, _ = strings.Cut(strings.TrimSpace(string(out)), "\n")
	conn, err := amqp.DialConfig(c.url(), amqp.Config{Dial: amqp.DefaultDial(5 * time.Second)})
	if err != nil {
		return err
	}
	c.version, _ = conn.Properties["version"].(string)
	return conn.Close()
}

func (c *container) stop() error {
	err := c.held.Close()
	select {
	case <-c.done:
		return nil
	case <-time.After(20 * time.Second):
	}
	remove := exec.Command("docker", "rm", "--force", c.name).Run()
	<-c.done
	return errors.Join(err, remove)
}
