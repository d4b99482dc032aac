package testbroker

// Pids returns the processes of the node's server, its epmd and its watchdog.
func (n *Node) Pids() []int {
	return []int{n.server.pid(), n.group.leader.pid(), n.group.watchdog.pid()}
}

// AMQPPort and EpmdPort replace the first port that is picked, once.
func AMQPPort(port int) NodeOption { return firstPick(func(p *ports) { p.amqp = port }) }

func EpmdPort(port int) NodeOption { return firstPick(func(p *ports) { p.epmd = port }) }

func firstPick(change func(*ports)) NodeOption {
	picked := false
	return func(s *settings) {
		s.pick = func() (ports, error) {
			p, err := pickPorts()
			if !picked {
				picked = true
				change(&p)
			}
			return p, err
		}
	}
}

var ShortName = shortName
