"""Starting and stopping the embedded Kinesis: in a thread of this process, or in a separate process."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, Unpack

from penstock_local.about import ServerDescription, exported_variables
from penstock_local.access import Access
from penstock_local.application import KinesisApplication
from penstock_local.calls import CallLog
from penstock_local.control import check_stream
from penstock_local.credentials import is_region
from penstock_local.errors import OptionError, Unavailable
from penstock_local.faults import FaultBook
from penstock_local.first_bytes import FirstBytes
from penstock_local.handle import Handle
from penstock_local.http import Connections
from penstock_local.journal import FileJournal
from penstock_local.moto_bridge import MotoBridge
from penstock_local.operations.call import Service
from penstock_local.option_checks import check_folder, plain_number
from penstock_local.queues.long_polls import LongPolls
from penstock_local.quotas import Quotas
from penstock_local.replay.player import Player
from penstock_local.service_errors import RequestRefused
from penstock_local.state_folder import StateFolder
from penstock_local.store import GIB, Store, StoreOptions
from penstock_local.stream_metrics import StreamMetrics
from penstock_local.subscriptions import Subscriptions
from penstock_local.tls import Certificate
from penstock_local.tokens import Tokens
from penstock_local.virtual_clock import VirtualClock

if TYPE_CHECKING:
    from penstock_local.keywords import LocalKeywords

HOST = "127.0.0.1"
_START_TIMEOUT_S = 60.0
_TURNS_FROM_ACCEPT_TO_CONNECTION = 3
_STOP_TIMEOUT_S = 20.0
_SWEEP_S = 1.0
_FREED_BLOCK_BYTES = 16 * 1024 * 1024

log = logging.getLogger("penstock_local")


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """How the embedded Kinesis runs.

    Attributes:
        port: TCP port on loopback; 0 takes a free one.
        limits: Whether the service's quotas are enforced.
        time_factor: Virtual seconds per real second; 0 stops the clock.
        state_dir: Folder that streams, records and tables are kept in; None keeps nothing.
        settle_s: Virtual seconds that CREATING, UPDATING and DELETING last.
        memory_bytes_max: Stored records at most, in bytes; writes beyond are refused.
        region: Region of the ARNs.
        allow_hosts: Host names to answer to beside `localhost` and loopback addresses, for instance
            `("host.docker.internal",)`; web pages of these hosts are answered too.
        tls: Whether it speaks TLS, with a certificate that is made at the start.
        cert: PEM file of a certificate to speak TLS with, and of what signed it up to the root.
        key: PEM file of its key.
        replay: Recordings (`penstock record`) whose streams it replays. They cannot be changed.
        replay_from: `end`: the clock begins at the end of the recordings, so every record is there at once; `start`: it
            begins where they begin, and the records appear at their moments, `time_factor` times as fast.
        on_demand_growth: Whether the shards of on-demand streams are split by their load; only with `limits`.
    """

    port: int = 0
    limits: bool = True
    time_factor: float = 1.0
    state_dir: str | os.PathLike[str] | None = None
    settle_s: float = 0.2
    memory_bytes_max: int = 4 * GIB
    region: str = "us-east-1"
    allow_hosts: tuple[str, ...] = ()
    tls: bool = False
    cert: str | Path | None = None
    key: str | Path | None = None
    replay: tuple[str | Path, ...] = ()
    replay_from: Literal["start", "end"] = "end"
    on_demand_growth: bool = True

    def __post_init__(self) -> None:
        numbers = {
            "port": plain_number("port", self.port, 0, 65535, is_whole=True),
            "settle_s": plain_number("settle_s", self.settle_s, 0),
            "memory_bytes_max": plain_number("memory_bytes_max", self.memory_bytes_max, 1, is_whole=True),
            "time_factor": plain_number("time_factor", self.time_factor, 0),
        }
        for name, number in numbers.items():
            object.__setattr__(self, name, number)
        check_folder("state_dir", self.state_dir)
        if not isinstance(self.region, str) or not is_region(self.region):
            raise OptionError(
                f"region must be the name of a region, for instance us-east-1, not {self.region!r}"
            )
        Access(self.allow_hosts)
        if (self.cert is None) != (self.key is None):
            raise OptionError("cert and key are the two files of one certificate: give both or neither")
        if not isinstance(self.replay, tuple):
            raise OptionError(f"replay takes a tuple of recordings, not {self.replay!r}: write (path,)")
        if self.replay_from not in ("start", "end"):
            raise OptionError(f"replay_from must be 'start' or 'end', not {self.replay_from!r}")
        if self.replay and self.state_dir is not None:
            raise OptionError("replay and state_dir exclude each other: a replay begins anew at every start")

    @property
    def speaks_tls(self) -> bool:
        """Return whether clients need `https`."""
        return self.tls or self.cert is not None


class Server:
    """One listening server on the running loop.

    Args:
        options: How it runs.
    """

    def __init__(self, options: LocalOptions) -> None:
        self.options = options
        self._player = Player(options.replay) if options.replay else None
        start_ms = None
        if self._player is not None:
            start_ms = self._player.from_ms if options.replay_from == "start" else self._player.until_ms
        self.clock = VirtualClock(options.time_factor, start_ms)
        self._folder = None if options.state_dir is None else StateFolder(Path(options.state_dir).absolute())
        self._journal = None if self._folder is None else FileJournal(self._folder)
        settings = StoreOptions(
            region=options.region,
            settle_ms=round(options.settle_s * 1000),
            memory_bytes_max=options.memory_bytes_max,
            on_demand_growth=options.on_demand_growth and options.limits,
        )
        self._store = Store(settings, self._journal)
        tokens = Tokens(secrets.token_bytes(32))
        quotas = Quotas(enforced=options.limits)
        metrics = StreamMetrics()
        subscriptions = Subscriptions(self._store, self.clock, metrics, limits=options.limits)
        polls = LongPolls(self._store.queues, self.clock)
        self._service = Service(self._store, quotas, tokens, FaultBook(), subscriptions, metrics, polls)
        self._bridge = MotoBridge(options.region, metrics, self._folder, self.clock.now_ms)
        self._application = KinesisApplication(
            self._service,
            self.clock,
            CallLog(),
            self._bridge,
            self.describe,
            allow_hosts=options.allow_hosts,
            player=self._player,
        )
        self._certificate: Certificate | None = None
        self._connections = Connections()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._is_loaded = False
        self._has_warned_of_folder = False
        self.port = 0

    async def start(self) -> None:
        """Listen; `port` is known on return.

        Raises:
            OptionError: The port is taken, or the state folder is damaged.
        """
        loop = asyncio.get_running_loop()
        options = self.options
        # Once glibc has seen a large block freed it keeps blocks up to that size. Otherwise the memory of each large body
        # may go back to the system and be fetched again, which costs more than reading the body.
        bytearray(_FREED_BLOCK_BYTES)
        try:
            if options.speaks_tls:
                self._certificate = Certificate(options.cert, options.key, options.allow_hosts)
            await self._load()
        except BaseException:
            await self.stop()
            raise
        try:
            tls = self._certificate.context if self._certificate is not None else None
            self._server = await loop.create_server(
                lambda: FirstBytes(self._application, loop, self._connections, tls),
                HOST,
                options.port,
                backlog=1024,
            )
        except OSError as error:
            await self.stop()
            remedy = (
                f"; `penstock-local --export --port {options.port}` tells whether an embedded Kinesis has it, port 0 takes a free one"
                if error.errno == errno.EADDRINUSE
                else ""
            )
            reason = error if error.errno is None else os.strerror(error.errno)
            raise OptionError(f"cannot listen on {HOST}:{options.port}: {reason}{remedy}") from error
        self.port = self._server.sockets[0].getsockname()[1]
        self._sweep()
        if self._player is not None:
            self._player.start()

    def handle(self) -> Handle:
        """Return this server as seen from outside; it must be listening."""
        scheme = "http" if self._certificate is None else "https"
        ca_bundle = None if self._certificate is None else str(self._certificate.ca_bundle)
        return Handle(f"{scheme}://{HOST}:{self.port}", self.options.region, ca_bundle)

    def describe(self) -> ServerDescription:
        """Return the settings that a client of this server needs."""
        state_dir = None if self._folder is None else str(self._folder.path.resolve())
        streams = {
            stream.name: len(stream.open_shards)
            for stream in self._store.streams.values()
            if stream.region == self.options.region
        }
        return ServerDescription(self.handle().environ(), streams, state_dir, os.getpid())

    async def _load(self) -> None:
        """Load the state folder, the recordings and the DynamoDB tables."""
        if self._journal is not None:
            self._journal.load(self._store)
            self.clock.catch_up(self._journal.clock_ms)
            self._service.tokens.key = self._journal.key
        if self._player is not None:
            self._player.load(self._store, self.clock)
        await self._bridge.start()
        self._is_loaded = True

    async def stop(self) -> None:
        """Stop listening, end all connections, close the state folder."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._player is not None:
            self._player.close()
        if self._server is not None:
            await _stop_accepting(self._server)
        await self._connections.close()
        if self._server is not None:
            await self._server.wait_closed()
        await asyncio.get_running_loop().run_in_executor(None, self._bridge.close)
        if self._journal is not None:
            # a start that failed writes nothing: the folder may be damaged
            self._journal.close(self.clock.now_ms() if self._is_loaded else None)
        if self._folder is not None:
            self._folder.close()
        if self._certificate is not None:
            self._certificate.remove()

    def step(self) -> str:
        """Let the next records of a replay appear; return a line about the replay."""
        assert self._player is not None, "only a replay has steps"
        self._application.control.step_replay({})
        return self._player.describe()

    def create_streams(self, streams: list[tuple[str, int]]) -> None:
        """Create the streams (name, shard count) that do not exist yet; they are ACTIVE on return.

        Raises:
            OptionError: The service would refuse one of them.
        """
        for name, count in streams:
            check_stream(name, count)
            if self._store.get(self.options.region, name, self.clock.now_ms()) is None:
                try:
                    self._store.create_active(name, count, self.clock.now_ms())
                except RequestRefused as refusal:
                    raise OptionError(f"stream {name!r} cannot be created: {refusal.message}") from refusal

    def _sweep(self) -> None:
        """Do the work that no call triggers, once a second: end overdue connections, drop expired records, save the state."""
        loop = asyncio.get_running_loop()
        try:
            self._connections.end_overdue(loop.time())
            now_ms = self.clock.now_ms()
            self._store.settle_all(now_ms)
            self._service.metrics.add_queue_levels(self._store.queues, now_ms)
            if self._journal is not None:
                if self.clock.factor > 1:
                    self._journal.save_clock(now_ms)
                self._journal.compact_if_large(self._store)
            self._warn_of_removed_folder()
        finally:
            # the loop logs the failure, and the next sweep runs all the same
            self._sweeper = loop.call_later(_SWEEP_S, self._sweep)

    def _warn_of_removed_folder(self) -> None:
        """Warn once that the state folder is gone from its path: a restart will find none of the changes."""
        if self._folder is None or self._folder.is_in_place:
            self._has_warned_of_folder = False
        elif not self._has_warned_of_folder:
            self._has_warned_of_folder = True
            log.error(
                "the state folder %s was removed, moved or replaced while this server uses it: it serves on, and a restart finds "
                "nothing of what it keeps. Stop the server, and put the folder back if it was moved",
                self._folder.path,
            )


async def _stop_accepting(server: asyncio.Server) -> None:
    """Accept no more connections, but wait for those already accepted: asyncio would lose them."""
    loop = asyncio.get_running_loop()
    for listener in server.sockets:
        loop.remove_reader(listener.fileno())
    for _ in range(_TURNS_FROM_ACCEPT_TO_CONNECTION):
        await asyncio.sleep(0)
    server.close()


class LocalKinesis(Handle):
    """The embedded Kinesis in a thread of this process; a context manager.

    ::

        with LocalKinesis() as kinesis:
            kinesis.create_stream("orders", shards=2)
            client = kinesis.client("kinesis")

    Args:
        options: As `LocalOptions` describes them.
    """

    def __init__(self, **options: Unpack[LocalKeywords]) -> None:
        self.options: LocalOptions = LocalOptions(**options)
        self._thread: threading.Thread | None = None
        self._request_stop: Callable[[], object] | None = None
        self._failure: BaseException | None = None

    def start(self) -> Self:
        """Start the server; it answers on return.

        Raises:
            OptionError: It cannot listen, or the state folder cannot be used.
        """
        if self._thread is not None:
            raise OptionError("this LocalKinesis runs already")
        started = threading.Event()
        self._failure = None
        self._thread = threading.Thread(target=self._run, args=(started,), name="penstock-local", daemon=True)
        self._thread.start()
        if not started.wait(_START_TIMEOUT_S):
            raise Unavailable(f"the embedded Kinesis did not start within {_START_TIMEOUT_S} s")
        self._raise_failure()
        return self

    def stop(self) -> None:
        """Stop the server and wait for it; does nothing when it does not run."""
        thread, stop = self._thread, self._request_stop
        if thread is None or stop is None:
            return
        stop()
        thread.join(_STOP_TIMEOUT_S)
        if thread.is_alive():
            raise Unavailable(f"the embedded Kinesis did not stop within {_STOP_TIMEOUT_S} s")
        self._thread = self._request_stop = None
        self._raise_failure()

    def _raise_failure(self) -> None:
        """Raise, in the waiting thread, the error that ended the server's thread."""
        if self._failure is not None:
            self._thread = self._request_stop = None
            raise self._failure

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _stop_after(error, self.stop)

    @staticmethod
    def process(**options: Unpack[LocalKeywords]) -> LocalKinesisProcess:
        """Return the same server for a separate process; takes the arguments of `LocalKinesis`."""
        return LocalKinesisProcess(**options)

    def _run(self, started: threading.Event) -> None:
        try:
            asyncio.run(self._serve(started))
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            self._failure = error
        finally:
            started.set()

    async def _serve(self, started: threading.Event) -> None:
        loop = asyncio.get_running_loop()
        stopping = asyncio.Event()
        self._request_stop = lambda: loop.call_soon_threadsafe(stopping.set)
        server = Server(self.options)
        await server.start()
        self._point_to(server.handle())
        started.set()
        try:
            await stopping.wait()
        finally:
            await server.stop()


class LocalKinesisProcess(Handle):
    """The embedded Kinesis in a separate process; a context manager with the arguments of `LocalKinesis`.

    It ends with the process that started it, however that one ends.
    """

    def __init__(self, **options: Unpack[LocalKeywords]) -> None:
        self.options: LocalOptions = LocalOptions(**options)
        self._process: subprocess.Popen[str] | None = None
        self._starter_pid = 0

    @property
    def pid(self) -> int:
        """Return the process id.

        Raises:
            Unavailable: The process does not run.
        """
        if self._process is None:
            raise Unavailable("this embedded Kinesis does not run")
        return self._process.pid

    def start(self) -> Self:
        """Start the process; it answers on return.

        Raises:
            Unavailable: The process ended before it answered; the message has its output.
        """
        if self._process is not None:
            raise OptionError("this LocalKinesisProcess runs already")
        command = [sys.executable, "-m", "penstock_local", *arguments(self.options), "--stop-on-eof"]
        # its output goes to a file: a pipe without a reader would block it when full
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            process = subprocess.Popen(  # noqa: S603 - our own module, our own arguments
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                encoding="utf-8",
                errors="replace",
            )
            assert process.stdout is not None
            timer = threading.Timer(_START_TIMEOUT_S, process.kill)
            timer.start()
            try:
                environ = exported_variables(process.stdout)
            finally:
                timer.cancel()
            if "AWS_ENDPOINT_URL" not in environ:
                process.kill()
                process.communicate()
                output.seek(0)
                raise Unavailable(f"the embedded Kinesis did not start: {output.read().strip()}")
        self._process, self._starter_pid = process, os.getpid()
        self._point_to(Handle(environ["AWS_ENDPOINT_URL"], self.options.region, environ.get("AWS_CA_BUNDLE")))
        return self

    def stop(self) -> None:
        """Ask the process to end, and wait for it."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the process as a crash would."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None or self._starter_pid != os.getpid():
            return  # a forked child leaves the block by its own exit: the server is its parent's
        process.send_signal(number)
        try:
            process.communicate(timeout=_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise Unavailable(f"the embedded Kinesis did not stop within {_STOP_TIMEOUT_S} s") from None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _stop_after(error, self.stop)


def _stop_after(error: BaseException | None, stop: Callable[[], None]) -> None:
    """Stop a server; if that fails after an error of the block around it, only log the failure."""
    try:
        stop()
    except Unavailable as problem:
        if error is None:
            raise
        log.warning(str(problem))


def arguments(options: LocalOptions) -> list[str]:
    """Return the command line that gives `python -m penstock_local` these options."""
    found = ["--port", str(options.port), "--time-factor", str(options.time_factor)]
    found += ["--settle", str(options.settle_s), "--memory-max", str(options.memory_bytes_max)]
    found += ["--region", options.region]
    if not options.limits:
        found.append("--no-limits")
    if not options.on_demand_growth:
        found.append("--no-on-demand-growth")
    for name in options.allow_hosts:
        found += ["--allow-host", name]
    if options.state_dir is not None:
        found += ["--state", os.fspath(options.state_dir)]
    if options.tls:
        found.append("--tls")
    if options.cert is not None:
        found += ["--cert", str(options.cert), "--key", str(options.key)]
    for path in options.replay:
        found += ["--replay", str(path)]
    if options.replay and options.replay_from == "start":
        found += ["--speed", str(options.time_factor)]
    return found


async def serve_until(options: LocalOptions, on_start: Callable[[Server], None], stop: asyncio.Event) -> None:
    """Run a server in the foreground of the running loop until `stop` is set.

    Args:
        options: How it runs.
        on_start: Called once it listens.
        stop: Ends the server when it is set.

    Raises:
        OptionError: It cannot listen, or the state folder cannot be used.
    """
    server = Server(options)
    await server.start()
    try:
        on_start(server)
        await stop.wait()
    finally:
        await server.stop()
