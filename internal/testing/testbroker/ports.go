package testbroker

import (
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
)

// Ports are picked below the range from which Linux takes the local ports of outgoing connections
// (32768 and up), so that a port stays free while its node is stopped.
const (
	firstPort = 18000
	lastPort  = 32000
)

type ports struct{ amqp, dist, epmd, tls int }

func pickPorts() (ports, error) {
	var picked [4]int
	for i := range picked {
		port, err := freePort(picked[:i])
		if err != nil {
			return ports{}, err
		}
		picked[i] = port
	}
	return ports{amqp: picked[0], dist: picked[1], epmd: picked[2], tls: picked[3]}, nil
}

func freePort(taken []int) (int, error) {
	for range 200 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if slices.Contains(taken, port) {
			continue
		}
		l, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			return 0, err
		}
		return port, nil
	}
	return 0, fmt.Errorf("no free port between %d and %d on 127.0.0.1", firstPort, lastPort)
}
