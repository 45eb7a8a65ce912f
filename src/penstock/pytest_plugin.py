"""The package's pytest fixtures.

`local_kinesis` is an embedded Kinesis per test, to which the environment points. `local_kinesis_server` is one for many tests,
and leaves the environment alone. `penstock_replay` serves recordings.

Loaded by pytest in every environment that has Penstock installed, so it imports nothing of ours until
a fixture is used.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from penstock_local import LocalKinesis


_SCOPE_SETTING: Final = "local_kinesis_server_scope"
_SENT_WITHIN_S: Final = 5.0
_SCOPES: Final = ("session", "package", "module", "class", "function")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the setting for how long a server lives."""
    parser.addini(
        _SCOPE_SETTING,
        f"how long the embedded Kinesis of the fixture local_kinesis_server lives: {', '.join(_SCOPES)}",
        default=_SCOPES[0],
    )


def pytest_configure(config: pytest.Config) -> None:
    """Check the setting, and make the marker known that passes options to the server."""
    if config.getini(_SCOPE_SETTING) not in _SCOPES:
        raise pytest.UsageError(
            f"{_SCOPE_SETTING} = {config.getini(_SCOPE_SETTING)}: expected one of {', '.join(_SCOPES)}"
        )
    config.addinivalue_line(
        "markers",
        "local_kinesis(**options): options of the embedded Kinesis that the fixture local_kinesis starts, "
        "for instance limits=False, time_factor=0, settle_s=0",
    )


def _server_class(fixture_name: str | None) -> type[LocalKinesis]:
    """Return the embedded Kinesis, or fail the test with the command that installs it."""
    try:
        from penstock_local import LocalKinesis
    except ModuleNotFoundError as missing:
        if missing.name != "penstock_local":
            raise
        pytest.fail(
            f"the fixture {fixture_name} needs the package penstock-local, which is not installed: "
            "pip install 'penstock[local]'",
            pytrace=False,
        )
    return LocalKinesis


@pytest.fixture
def local_kinesis(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalKinesis]:
    """An empty embedded Kinesis for one test; region, endpoint and credentials in the environment point to it.

    Options go into the marker: `@pytest.mark.local_kinesis(limits=False)`.
    """
    marker = request.node.get_closest_marker("local_kinesis")
    if marker is not None and marker.args:
        pytest.fail(
            "the marker local_kinesis takes options by name: @pytest.mark.local_kinesis(limits=False)",
            pytrace=False,
        )
    with _server_class(request.fixturename)(**(marker.kwargs if marker is not None else {})) as kinesis:
        _point_environment(kinesis, monkeypatch)
        yield kinesis
        _send_waiting()


@pytest.fixture
def penstock_replay(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., LocalKinesis]]:
    """A function that replays a recording of `penstock record` in an embedded Kinesis, until the test ends.

    `penstock_replay("incident.penstock")` returns the server; region, endpoint and credentials in the environment point to
    it. Its keywords are options of `LocalKinesis`: `replay_from="start", time_factor=10` replays ten times as fast.
    """
    server_class = _server_class(request.fixturename)
    with ExitStack() as servers:

        def start(*recordings: str | Path, **options: Any) -> LocalKinesis:
            kinesis = servers.enter_context(server_class(replay=recordings, **options))
            _point_environment(kinesis, monkeypatch)
            return kinesis

        yield start
        _send_waiting()


def _send_waiting() -> None:
    """Flush open producers while the environment still points to the server. Later their records would go elsewhere."""
    loaded = sys.modules.get("penstock.producer.producer")
    if loaded is not None:
        loaded.flush_environment_producers(_SENT_WITHIN_S)


def _point_environment(kinesis: LocalKinesis, monkeypatch: pytest.MonkeyPatch) -> None:
    # a profile, a session token or the endpoint of one service would lead elsewhere
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in kinesis.environ().items():
        monkeypatch.setenv(name, value)


def _server_scope(fixture_name: str, config: pytest.Config) -> Any:  # noqa: ARG001 - pytest names both
    return config.getini(_SCOPE_SETTING)


@pytest.fixture(scope=_server_scope)
def local_kinesis_server(request: pytest.FixtureRequest) -> Iterator[LocalKinesis]:
    """An embedded Kinesis for the whole session; the environment is left alone.

    Reach it by `client("kinesis")`, `connection()`, `endpoint_url` or `environ()`. The setting
    `local_kinesis_server_scope` makes a new one for each module, for instance.
    """
    with _server_class(request.fixturename)() as kinesis:
        yield kinesis
