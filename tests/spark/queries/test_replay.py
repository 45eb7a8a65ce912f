"""Reading again from a moment: the leases are set back, and the query gets a new checkpoint location."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from penstock.cli import main as cli
from spark_support import numbered, put, wait_for_next_second

QUERY_OPTIONS = {"leaseDuration": "2s"}


def read_all(q):
    """The numbers of all that is unread."""
    q.rows = []
    q.drain()
    return q.numbers()


def reset(q, server, monkeypatch, folder, position):
    for name, value in server.environ().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder)
    q.reader.stop()
    application = q.given["applicationName"]
    assert cli.main(["leases", application, "--stream", q.stream, "--reset-to", position]) == 0


@pytest.mark.parametrize("is_new", [True, False])
def test_a_new_checkpoint_location_reads_from_the_moment_and_the_old_one_goes_on(
    query, server, client, monkeypatch, tmp_path, is_new
):
    q = query()
    put(client, q.stream, numbered(0, 10))
    assert read_all(q) == list(range(10))
    wait_for_next_second()
    moment = datetime.now(UTC).isoformat()
    put(client, q.stream, numbered(10, 20))
    assert read_all(q) == list(range(10, 20))
    reset(q, server, monkeypatch, tmp_path, f"AT_TIMESTAMP:{moment}")
    if is_new:
        q.done = None
    q.reader = q.fresh()
    put(client, q.stream, numbered(20, 25))
    assert read_all(q) == list(range(10 if is_new else 20, 25))
