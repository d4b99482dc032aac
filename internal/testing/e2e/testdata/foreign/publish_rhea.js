// Publishes what rhea can write, to the address in its argument. Run by record.py.
const rhea = require('rhea')
const { types, message } = rhea

const url = new URL(process.env.AMQP_URL)
const connection = rhea.connect({ host: url.hostname, port: url.port, username: 'guest', password: 'guest', container_id: 'recorded', reconnect: false, idle_time_out: 0 })
const sender = connection.open_sender({ name: 'recorded', target: { address: process.argv[2], durable: 0 }, autosettle: true })
const uuid = Buffer.from('00112233445566778899aabbccddeeff', 'hex')
const named = (name, properties) => ({ application_properties: { case: name }, ...properties })

const data = (text) => message.data_section(Buffer.from(text))

// What no consumer of AMQP 0-9-1 is ever given is left out: a char or a uuid in annotations and application properties
// (4.x), an id that is a number, delivery annotations (3.10).
const messages = [
  { body: data('nothing but a body') },
  named('data', { body: data('{"order": 3}'), durable: true }),
  named('empty data', { body: data('') }),
  named('several data', { body: message.data_sections([Buffer.from('one,'), Buffer.from('two,'), Buffer.from('three')]) }),
  named('value text', { body: 'gr\u00fc\u00df' }),
  named('value binary', { body: types.wrap_binary(Buffer.from([0, 255])) }),
  named('value map', { body: types.wrap_map({ n: types.wrap_int(7), list: types.wrap_list([types.wrap_boolean(true)]) }) }),
  named('sequences', { body: message.sequence_sections([[types.wrap_int(1)], [types.wrap_string('two')]]) }),
  named('properties', {
    body: data('x'), durable: true, priority: 7, message_id: 'id-1', user_id: Buffer.from('guest'), to: 'somewhere', subject: 'order.created',
    reply_to: '/queues/answers', correlation_id: 'corr', content_type: 'application/json', content_encoding: 'utf-8',
    absolute_expiry_time: new Date(4000000000000), creation_time: new Date(1790000000123), group_id: 'group', group_sequence: 5, reply_to_group_id: 'answers',
  }),
  named('empty properties', { body: data('x'), priority: 0, message_id: '', correlation_id: '', content_type: '', content_encoding: '', creation_time: new Date(0) }),
  named('id of uuid', { body: data('x'), message_id: types.wrap_uuid(uuid), correlation_id: types.wrap_uuid(uuid) }),
  named('id of binary', { body: data('x'), message_id: types.wrap_binary(Buffer.from([0, 255])), correlation_id: types.wrap_binary(Buffer.from([1])) }),
  named('ttl', { body: data('x'), ttl: 600000, first_acquirer: true, delivery_count: 2 }),
  named('annotations', { body: data('x'), message_annotations: { 'x-opt-mine': 'kept', 'x-own': types.wrap_int(7), 'x-list': types.wrap_list([types.wrap_int(1), types.wrap_string('two')]) } }),
  {
    body: data('x'), application_properties: {
      case: 'application properties', boolean: true, ubyte: types.wrap_ubyte(200), ushort: types.wrap_ushort(60000), uint: types.wrap_uint(4000000000), ulong: types.wrap_ulong(1099511627776),
      byte: types.wrap_byte(-7), short: types.wrap_short(-300), int: types.wrap_int(-70000), long: types.wrap_long(-1099511627776), float: types.wrap_float(0.25), double: types.wrap_double(0.1),
      timestamp: types.wrap_timestamp(1772368245123), binary: types.wrap_binary(Buffer.from([0, 255])), string: 'text', empty: '', symbol: types.wrap_symbol('word'), null: null,
    },
  },
]

let sent = 0, done = 0
connection.on('sendable', () => {
  while (sender.sendable() && sent < messages.length) sender.send(messages[sent], String(sent++))
})
for (const outcome of ['accepted', 'rejected', 'released', 'modified']) {
  connection.on(outcome, (context) => {
    if (outcome !== 'accepted') console.error(outcome, String(context.delivery.remote_state && context.delivery.remote_state.error))
    if (++done === messages.length) connection.close()
  })
}
for (const failed of ['connection_error', 'session_error', 'sender_error']) {
  connection.on(failed, (context) => { console.error(failed, context.connection.error || context.session && context.session.error || context.sender && context.sender.error); process.exit(1) })
}
