"""A web server puts an event for each request, and is stopped by its supervisor while requests arrive."""

import signal
import threading
import urllib.request
from http.client import HTTPException

from user_programs import all_records

SERVER = """
    import signal, sys, threading
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    from penstock import Producer

    class Events(BaseHTTPRequestHandler):
        def do_POST(self):
            data = self.rfile.read(int(self.headers["Content-Length"]))
            producer.put(data, partition_key=data.decode())  # the answer does not wait for the acknowledgement
            self.send_response(202)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Events)
    server.daemon_threads = False  # requests under way are answered
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    with Producer(stream="events") as producer:
        print(server.server_port, flush=True)
        server.serve_forever()
        server.server_close()
"""


def test_a_web_server_is_stopped_and_loses_no_event(local_kinesis, programs):
    local_kinesis.create_stream("events", shards=2)
    server = programs.start(SERVER, name="server")
    server.wait_for("\n")
    address = f"http://127.0.0.1:{server.lines()[0]}/"
    accepted, is_refused = [], threading.Event()
    lock = threading.Lock()

    def browse(person):
        number = 0
        while not is_refused.is_set():
            event = f"{person}-{number}"
            try:
                urllib.request.urlopen(address, event.encode(), timeout=30).close()
            except (OSError, HTTPException):  # the server is gone; this event was not accepted
                is_refused.set()
            else:
                with lock:
                    accepted.append(event)
                    if len(accepted) == 500:
                        server.send(signal.SIGTERM)
            number += 1

    people = [threading.Thread(target=browse, args=(person,)) for person in range(4)]
    for person in people:
        person.start()
    for person in people:
        person.join()
    assert server.wait() == 0, server.log()
    found = [record.data.decode() for record in all_records(local_kinesis, "events")]
    assert len(accepted) >= 500
    assert set(accepted) <= set(found)
    assert len(found) == len(set(found))
    # An event whose answer was lost with the connection may be there: at most one for each person.
    assert len(set(found) - set(accepted)) <= len(people)
