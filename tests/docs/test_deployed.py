"""What the files in deploy/ run, as processes: the server keeps its state, the consumer gets ready and ends gracefully."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from deploy_files import CONTAINER, POD, SERVICES
from waiting import wait_until

DEADLINE_S = 90.0


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def processes():
    started = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def test_the_server_keeps_its_state_and_a_consumer_gets_ready_and_gives_its_leases_back(processes, tmp_path):
    server_port, metrics_port = free_port(), free_port()
    environ = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    variables = SERVICES["consumer"]["environment"]
    environ |= {**variables, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server_port}"}
    penstock = [sys.executable, "-m", "penstock"]

    def start(words):
        processes.append(subprocess.Popen([*penstock, *words], env=environ, stdout=subprocess.DEVNULL))
        return processes[-1]

    def run(*words):
        return subprocess.run(
            [*penstock, *words], env=environ, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )

    def serve():
        words = [word.replace("/state", str(tmp_path)) for word in SERVICES["kinesis"]["command"]]
        server = start([*words, "--port", str(server_port)])
        test = SERVICES["kinesis"]["healthcheck"]["test"]
        wait_until(lambda: run(*test[2:]).returncode == 0, "the server to be healthy")
        return server

    def answer_of(path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}{path}", timeout=5) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:
            return None  # it does not listen yet

    def leases():
        listed = run("leases", "billing", "--json", "--observe", "0")
        assert listed.returncode == 0, listed.stderr
        return json.loads(listed.stdout)

    server = serve()
    server.send_signal(signal.SIGTERM)
    assert server.wait(DEADLINE_S) == 0
    serve()  # the stream that it creates is there

    words = [word.replace("$(POD_NAME)", "billing-0") for word in CONTAINER["args"]]
    consumer = start([word.replace("0.0.0.0:9464", str(metrics_port)) for word in words])
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        path = CONTAINER[probe]["httpGet"]["path"]
        wait_until(lambda path=path: answer_of(path) == 200, f"{path} to answer 200")
    wait_until(
        lambda: {lease["owner"] for lease in leases()["leases"]} == {"billing-0"}, "the leases to be taken"
    )
    consumer.send_signal(signal.SIGTERM)
    assert consumer.wait(POD["terminationGracePeriodSeconds"]) == 0
    assert {lease["owner"] for lease in leases()["leases"]} == {None}
