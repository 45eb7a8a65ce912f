"""A supervisor asks `/health`: a shard stops at an order of a new kind, the pod is replaced by a version that knows it."""

import socket
import urllib.error
import urllib.request

from user_programs import Orders, once
from waiting import wait_until

SERVICE = r"""
    import logging
    import sys

    from penstock import Consumer
    from penstock.consumer.metrics_prometheus import PrometheusMetrics

    logging.basicConfig(level="INFO")

    def handle(batch):
        texts = [record.data.decode() for record in batch]
        if "order 150" in texts and sys.argv[1] == "old":
            raise ValueError("an order of a new kind")
        print("".join(text + "\n" for text in texts), end="", flush=True)

    metrics = PrometheusMetrics(port=int(sys.argv[2]))
    Consumer(
        stream="orders",
        application="billing",
        handler=handle,
        starting_position="TRIM_HORIZON",
        metrics=metrics,
        handler_retries_max=2,  # the order stays as it is
    ).run()
"""


def status_of(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def test_a_pod_that_fails_its_health_check_is_replaced(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=2)
    orders = Orders(local_kinesis)
    orders.put(100)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    old = programs.start(SERVICE, "old", str(port), name="old")
    programs.wait_for(orders)
    assert (status_of(port, "/ready"), status_of(port, "/health")) == (200, 200)
    orders.put(100)
    wait_until(lambda: status_of(port, "/health") == 503, "the failed health check")
    assert old.terminate() == 0
    new = programs.start(SERVICE, "new", str(port), name="new")
    programs.wait_for(orders)
    assert (status_of(port, "/ready"), status_of(port, "/health")) == (200, 200)
    assert new.terminate() == 0
    assert programs.printed() == once(orders)
