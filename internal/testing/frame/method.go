package frame

import "fmt"

// Method is class<<16 | method.
type Method uint32

// The methods that tests speak of.
const (
	ConnectionStart     Method = 10<<16 | 10
	ConnectionStartOk   Method = 10<<16 | 11
	ConnectionTune      Method = 10<<16 | 30
	ConnectionTuneOk    Method = 10<<16 | 31
	ConnectionOpen      Method = 10<<16 | 40
	ConnectionOpenOk    Method = 10<<16 | 41
	ConnectionClose     Method = 10<<16 | 50
	ConnectionCloseOk   Method = 10<<16 | 51
	ConnectionBlocked   Method = 10<<16 | 60
	ConnectionUnblocked Method = 10<<16 | 61
	ChannelOpen         Method = 20<<16 | 10
	ChannelOpenOk       Method = 20<<16 | 11
	ChannelClose        Method = 20<<16 | 40
	ChannelCloseOk      Method = 20<<16 | 41
	QueueDeclare        Method = 50<<16 | 10
	QueueDeclareOk      Method = 50<<16 | 11
	BasicCancel         Method = 60<<16 | 30
	BasicPublish        Method = 60<<16 | 40
	BasicReturn         Method = 60<<16 | 50
	BasicDeliver        Method = 60<<16 | 60
	BasicAck            Method = 60<<16 | 80
	BasicNack           Method = 60<<16 | 120
	ConfirmSelect       Method = 85<<16 | 10
	ConfirmSelectOk     Method = 85<<16 | 11
)

var names = map[Method]string{
	ConnectionStart: "connection.start", ConnectionStartOk: "connection.start-ok",
	ConnectionTune: "connection.tune", ConnectionTuneOk: "connection.tune-ok",
	ConnectionOpen: "connection.open", ConnectionOpenOk: "connection.open-ok",
	ConnectionClose: "connection.close", ConnectionCloseOk: "connection.close-ok",
	ConnectionBlocked: "connection.blocked", ConnectionUnblocked: "connection.unblocked",
	ChannelOpen: "channel.open", ChannelOpenOk: "channel.open-ok",
	ChannelClose: "channel.close", ChannelCloseOk: "channel.close-ok",
	QueueDeclare: "queue.declare", QueueDeclareOk: "queue.declare-ok",
	BasicCancel: "basic.cancel", BasicPublish: "basic.publish", BasicReturn: "basic.return",
	BasicDeliver: "basic.deliver",
	BasicAck:     "basic.ack", BasicNack: "basic.nack",
	ConfirmSelect: "confirm.select", ConfirmSelectOk: "confirm.select-ok",
}

// String is the method's name in the specification.
func (m Method) String() string {
	if name, ok := names[m]; ok {
		return name
	}
	return fmt.Sprintf("method %d.%d", uint32(m)>>16, uint32(m)&0xFFFF)
}
