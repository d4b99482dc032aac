"""Records the bytes that a client sends to RabbitMQ: record.py FILE COMMAND...

The command finds the address of a proxy in AMQP_URL. Of AMQP 0-9-1 the file has a line of hexadecimal digits for
each message: its method, header and body frames. Of AMQP 1.0 it has a line for each frame of the whole session.
"""
import os, socket, struct, subprocess, sys, threading
from urllib.parse import urlsplit, urlunsplit


def tee(source, target, into):
    try:
        while data := source.recv(1 << 16):
            into.extend(data)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:  # the other side has closed both ways
        pass


def frames_091(data):
    data = data[8:]
    while data:
        size = struct.unpack('>I', data[3:7])[0] + 8
        yield data[:size]
        data = data[size:]


def publishes(data):
    message, missing = b'', 0
    for frame in frames_091(data):
        if frame[0] == 1 and frame[7:11] == struct.pack('>HH', 60, 40):
            message, missing = frame, -1
        elif missing and frame[0] == 2:
            message, missing = message + frame, struct.unpack('>Q', frame[11:19])[0]
        elif missing and frame[0] == 3:
            message, missing = message + frame, missing - (len(frame) - 8)
        if message and not missing:
            yield message
            message = b''


def session_10(data):
    while data:
        size = 8 if data[:4] == b'AMQP' else struct.unpack('>I', data[:4])[0]
        yield data[:size]
        data = data[size:]


url, sent = urlsplit(os.environ['AMQP_URL']), bytearray()
listener = socket.create_server(('127.0.0.1', 0))


def serve():
    client, _ = listener.accept()
    broker = socket.create_connection((url.hostname, url.port))
    threading.Thread(target=tee, args=(broker, client, bytearray()), daemon=True).start()
    tee(client, broker, sent)


proxy = threading.Thread(target=serve)
proxy.start()
address = urlunsplit(url._replace(netloc='guest:guest@127.0.0.1:%d' % listener.getsockname()[1]))
subprocess.run(sys.argv[2:], env=dict(os.environ, AMQP_URL=address), check=True)
proxy.join()
old = sent[:8] == b'AMQP\x00\x00\x09\x01'
with open(sys.argv[1], 'w') as out:
    for line in publishes(bytes(sent)) if old else session_10(bytes(sent)):
        out.write(line.hex() + '\n')
