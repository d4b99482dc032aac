// Publishes what amqplib can write. Run by record.py.
const amqp = require('amqplib')

const typed = (type, value) => ({ '!': type, value })

async function main() {
  const connection = await amqp.connect(process.env.AMQP_URL)
  const channel = await connection.createConfirmChannel()
  const publish = (body, options) => channel.publish('recorded', 'order', Buffer.from(body), { mandatory: true, ...options })

  publish('nothing but a body', {})
  publish('{"order": 2}', {
    messageId: 'typical', contentType: 'application/json', contentEncoding: 'utf-8', persistent: true, priority: 9,
    correlationId: 'corr', replyTo: 'answers', timestamp: 1790000000, type: 'order.created', appId: 'shop',
    headers: { source: 'amqplib' },
  })
  publish('x', { messageId: 'empty properties', contentType: '', contentEncoding: '', priority: 0, correlationId: '', replyTo: '', type: '', appId: '', headers: {} })
  publish('x', { messageId: 'zero timestamp', timestamp: 0 })
  publish('x', { messageId: 'milliseconds', timestamp: 1790000000000, expiration: 600000 })
  publish('x', { messageId: 'left out', userId: 'guest', expiration: '600000', CC: [], BCC: [] })
  publish('x', {
    messageId: 'header types',
    headers: {
      text: 'grüß', bytes: Buffer.from([0, 255]), true: true, false: false, int8: -7, int16: -300, int32: 70000, int64: 2 ** 40,
      uint8: typed('uint8', 200), uint16: typed('uint16', 60000), uint32: typed('uint32', 4000000000), float32: typed('float', 0.25), float64: 0.1,
      time: typed('timestamp', 1772368245), decimal: typed('decimal', { digits: 1234, places: 2 }), void: null,
      table: { deep: { n: 7 }, list: [1, 'two', [true, {}]] }, array: [1, 300, 70000, 2 ** 40, 0.5, null, [], { k: [1] }],
    },
  })
  await channel.waitForConfirms()
  await connection.close()
}

main().catch((err) => { console.error(err); process.exit(1) })
