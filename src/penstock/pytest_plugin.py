"""The pytest fixture that comes with the package: `local_kinesis`, an embedded Kinesis per test.

Loaded by pytest in every environment that has Penstock installed, so it imports nothing of ours until
the fixture is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock.local import LocalKinesis


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known that passes options to the server."""
    config.addinivalue_line(
        "markers",
        "local_kinesis(**options): options of the embedded Kinesis that the fixture local_kinesis starts, "
        "for instance limits=False, time_factor=0, settle_s=0",
    )


@pytest.fixture
def local_kinesis(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalKinesis]:
    """An empty embedded Kinesis for one test; region, endpoint and credentials in the environment point to it.

    Options go into the marker: `@pytest.mark.local_kinesis(limits=False)`.
    """
    from penstock.local import LocalKinesis

    marker = request.node.get_closest_marker("local_kinesis")
    with LocalKinesis(**(marker.kwargs if marker is not None else {})) as kinesis:
        # a profile, a session token or the endpoint of one service would lead elsewhere
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        for name, value in kinesis.environ().items():
            monkeypatch.setenv(name, value)
        yield kinesis
