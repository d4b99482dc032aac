"""Publishes what pika can write. Run by record.py."""
import os, pika
from datetime import datetime
from decimal import Decimal

connection = pika.BlockingConnection(pika.URLParameters(os.environ['AMQP_URL']))
channel = connection.channel()
channel.confirm_delivery()


def publish(body, **properties):
    channel.basic_publish('recorded', 'order', body, pika.BasicProperties(**properties), mandatory=True)


publish(b'nothing but a body')
publish(b'{"order": 1}', message_id='typical', content_type='application/json', content_encoding='utf-8', delivery_mode=2,
        priority=3, correlation_id='corr', reply_to='answers', timestamp=1790000000, type='order.created', app_id='shop',
        headers={'source': 'pika'})
publish(b'', message_id='empty body', delivery_mode=1)
publish(b'x', message_id='empty properties', content_type='', content_encoding='', priority=0, correlation_id='', reply_to='',
        type='', app_id='', headers={})
publish(b'x', message_id='zero timestamp', timestamp=0)
publish(b'x', message_id='left out', user_id='guest', cluster_id='cluster', expiration='600000')
publish(b'x', message_id='header types', headers={
    'text': 'gr\u00fc\u00df', 'empty': '', 'bytes': b'\x00\xff', 'no bytes': b'', 'true': True, 'false': False,
    'int': 7, 'negative': -7, 'long': 1 << 40, 'negative long': -(1 << 40), 'zero': 0,
    'decimal': Decimal('12.34'), 'whole decimal': Decimal('5'), 'time': datetime(2026, 3, 1, 12, 30, 45),
    'void': None, 'table': {'deep': {'n': 7, 'none': None}, 'list': [1, 'two', [True, {}]]}, 'empty table': {},
    'array': [1, 'two', b'\x03', None, [], {'k': [1 << 40]}], 'empty array': []})
connection.close()
