"""The settings that a client of a running server needs, as lines that a shell takes."""

from __future__ import annotations

import shlex
import ssl
from collections.abc import Iterable
from dataclasses import dataclass

from penstock_local.errors import OptionError, Unavailable
from penstock_local.handle import ControlClient

_EXPORT = "export "


@dataclass(frozen=True, slots=True)
class ServerDescription:
    """A running server, as it describes itself.

    Attributes:
        environ: Variables that point an SDK to it.
        streams: Its streams in its own region, with their numbers of open shards.
        state_dir: The folder that keeps its streams, records and tables; None if it keeps nothing.
        pid: The number of its process.
    """

    environ: dict[str, str]
    streams: dict[str, int]
    state_dir: str | None
    pid: int

    def lines(self) -> list[str]:
        """Return lines for a shell: the variables to export, then comments."""
        names = ", ".join(f"{name} ({_shards(count)})" for name, count in self.streams.items())
        port = self.environ["AWS_ENDPOINT_URL"].rpartition(":")[2]
        return [
            *(f"{_EXPORT}{name}={shlex.quote(value)}" for name, value in self.environ.items()),
            "# Kinesis, DynamoDB, CloudWatch and STS are served at this endpoint.",
            f'# In another terminal: eval "$(penstock-local --export --port {port})"',
            f"# Streams: {names or 'none yet'}.",
            "# Nothing is kept: everything is gone when the server stops. --state DIR keeps it."
            if self.state_dir is None
            else f"# Streams, records and tables are kept in {printable(self.state_dir)}.",
            f"# To stop the server: Ctrl-C where it runs, or kill {self.pid}",
        ]


def printable(text: str) -> str:
    """Return a text as one line for a shell: control characters are replaced by their codes."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _shards(count: int) -> str:
    return "1 shard" if count == 1 else f"{count} shards"


def exported_variables(lines: Iterable[str]) -> dict[str, str]:
    """Return the variables that `ServerDescription.lines` begins with. The lines after them are not read."""
    found = {}
    for line in lines:
        if not line.startswith(_EXPORT):
            break
        name, _, value = line.removeprefix(_EXPORT).partition("=")
        found[name] = shlex.split(value)[0]
    return found


def fetch_description(port: int) -> ServerDescription:
    """Return the self-description of the server on a port of this machine.

    Raises:
        Unavailable: No server runs there.
    """
    # only the answer names the certificate by which it can be checked
    unchecked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unchecked.check_hostname = False
    unchecked.verify_mode = ssl.CERT_NONE
    for tls in (None, unchecked):
        try:
            return ServerDescription(**ControlClient(f"127.0.0.1:{port}", tls).ask("GET", "about"))
        except (Unavailable, OptionError):
            continue
    raise Unavailable(f"no embedded Kinesis runs on port {port}; start one: penstock-local --port {port}")
