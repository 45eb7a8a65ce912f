"""Install and run Kinesis servers by others, for suites that must not grade themselves.

    python tools/peers.py install [name ...]     put them into .peers/ (npm or pip, pinned versions)
    python tools/peers.py run kinesis-local      start one on a free loopback port and print its address

Everything is in .peers/ of this checkout. Nothing is installed into the project's environment, and removing the folder removes
them. A server that cannot be installed (no node, no network) raises `PeerUnavailable`, and a test is skipped with its
message.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".peers"
INSTALL_TIMEOUT_S = 180
START_TIMEOUT_S = 30


class PeerUnavailable(Exception):  # noqa: N818 - named for what happened
    """A server cannot be had here; the text says why."""


@dataclass(frozen=True)
class Peer:
    """One server.

    Args:
        name: Its name in this project.
        version: The pinned version; part of its folder's name, so that another one is installed separately.
        install: Fills a folder; raises `PeerUnavailable`.
        launch: Returns the command line and additional environment variables, given its folder and a port.
    """

    name: str
    version: str
    install: Callable[[Path], None]
    launch: Callable[[Path, int], tuple[list[str], dict[str, str]]]

    @property
    def folder(self) -> Path:
        """Where it is installed."""
        return FOLDER / f"{self.name}-{self.version}"


# --- installing -------------------------------------------------------------------------------------------


def _run(command: list[str], what: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise PeerUnavailable(f"{what} took longer than {INSTALL_TIMEOUT_S} s (no network?)") from None
    if done.returncode != 0:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no output"]
        raise PeerUnavailable(f"{what} failed: {last[0][:200]}")


def _install_from_npm(folder: Path, name: str, version: str) -> None:
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise PeerUnavailable(f"{name} needs node and npm, and they are not on the PATH")
    command = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--ignore-scripts"]
    command += ["--fetch-retries=1", "--fetch-timeout=20000"]
    _run([*command, f"{name}@{version}"], f"npm install {name}@{version}")


def _install_kinesis_local(folder: Path) -> None:
    _install_from_npm(folder, "kinesis-local", "0.6.2")


def _install_kinesalite(folder: Path) -> None:
    _install_from_npm(folder, "kinesalite", "3.3.3")


def _install_ministack(folder: Path) -> None:
    venv.create(folder, with_pip=True)
    # Without cbor2 it refuses CBOR; with it, it is measured by the same yardstick as the others.
    wanted = ["ministack==1.5.33", "cbor2"]
    command = [
        str(folder / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    _run([*command, *wanted], "pip install ministack==1.5.33")


def _install_nothing(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for module in ("moto.server", "flask", "flask_cors"):
        found = subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, check=False)
        if found.returncode != 0:
            raise PeerUnavailable(f"moto's server needs {module}: pip install 'moto[server]'")


def _launch_kinesis_local(folder: Path, port: int) -> tuple[list[str], dict[str, str]]:
    program = folder / "node_modules" / "kinesis-local" / "main.js"
    changes = ("CREATE_STREAM", "DELETE_STREAM", "SPLIT_SHARD", "MERGE_SHARDS", "UPDATE_SHARD_COUNT")
    return ["node", "-r", str(ROOT / "tools" / "bind_loopback.cjs"), str(program)], {
        "KINESIS_MOCK_PLAIN_PORT": str(port),
        "KINESIS_MOCK_TLS_PORT": str(free_port(other_than=port)),
        "KINESIS_MOCK_CERT_PATH": str(program.with_name("server.json")),
        "SHARD_LIMIT": "1000",
        "ON_DEMAND_STREAM_COUNT_LIMIT": "100",
        "LOG_LEVEL": "ERROR",
        **{f"{change}_DURATION": "150ms" for change in changes},
    }


def _launch_kinesalite(folder: Path, port: int) -> tuple[list[str], dict[str, str]]:
    program = folder / "node_modules" / "kinesalite" / "cli.js"
    loopback = str(ROOT / "tools" / "bind_loopback.cjs")
    return ["node", "-r", loopback, str(program), "--port", str(port), "--createStreamMs", "100"], {}


def _launch_ministack(folder: Path, port: int) -> tuple[list[str], dict[str, str]]:
    return [str(folder / "bin" / "ministack")], {
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "SERVICES": "kinesis",
        "PERSIST_STATE": "0",
    }


def _launch_moto(_folder: Path, port: int) -> tuple[list[str], dict[str, str]]:
    return [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], {}


PEERS = {
    peer.name: peer
    for peer in (
        Peer("kinesalite", "3.3.3", _install_kinesalite, _launch_kinesalite),
        Peer("kinesis-local", "0.6.2", _install_kinesis_local, _launch_kinesis_local),
        Peer("ministack", "1.5.33", _install_ministack, _launch_ministack),
        Peer("moto", "here", _install_nothing, _launch_moto),
    )
}


def install(peer: Peer) -> None:
    """Install a server unless it is there; one process at a time, and never half.

    Raises:
        PeerUnavailable: It cannot be had here.
    """
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = peer.folder / ".installed"
        if done.exists():
            return
        shutil.rmtree(peer.folder, ignore_errors=True)
        peer.install(peer.folder)
        done.touch()


# --- running ----------------------------------------------------------------------------------------------


def free_port(other_than: int | None = None) -> int:
    """Return a loopback port that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = int(listener.getsockname()[1])
        return free_port(other_than) if port == other_than else port  # drawn while the other one is held


@contextlib.contextmanager
def running(name: str, log: Path) -> Iterator[str]:
    """Start a server on loopback, installing it first where needed; stop it at the end.

    Args:
        name: One of `PEERS`.
        log: File for its output.

    Yields:
        Its endpoint URL.

    Raises:
        PeerUnavailable: It cannot be had here.
        RuntimeError: It is here and does not start.
    """
    peer = PEERS[name]
    install(peer)
    port = free_port()
    command, environment = peer.launch(peer.folder, port)
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            cwd=peer.folder,
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
    try:
        _wait_until_it_answers(peer, process, port, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()  # it has nothing to keep, and one of them takes ten seconds to end in peace
        process.wait(10)


def _wait_until_it_answers(peer: Peer, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    pause = threading.Event()
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            tail = log.read_text(errors="replace")[-300:]
            raise RuntimeError(f"{peer.name} ended at once with status {process.returncode}: {tail}")
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/",
            data=b"{}",
            headers={
                "Content-Type": "application/x-amz-json-1.1",
                "X-Amz-Target": "Kinesis_20131202.ListStreams",
                "Authorization": "AWS4-HMAC-SHA256 Credential=local/20260101/us-east-1/kinesis/aws4_request, "
                "SignedHeaders=host, Signature=0",
                "X-Amz-Date": "20260101T000000Z",
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=5):
                return
        except urllib.error.HTTPError:
            return  # it answers, if only to say no
        except OSError:
            pause.wait(0.05)
    raise RuntimeError(
        f"{peer.name} did not answer within {START_TIMEOUT_S} s; it printed: {log.read_text()[-300:]}"
    )


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["install", "run"])
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(PEERS))
    arguments = parser.parse_args()
    names = arguments.names or list(PEERS)
    if unknown := set(names) - PEERS.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    try:
        if arguments.action == "run":
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # the server ends with its starter
            signal.signal(signal.SIGINT, signal.default_int_handler)
            with running(names[0], FOLDER / f"{names[0]}.log") as url:
                print(url, flush=True)
                threading.Event().wait()
        for name in names:
            install(PEERS[name])
            print(f"{name} {PEERS[name].version}: {PEERS[name].folder}")
    except PeerUnavailable as problem:
        print(problem, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
