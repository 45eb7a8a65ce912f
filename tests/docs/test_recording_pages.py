"""docs/recording-format.md and docs/record-replay.md: their programs run over a recording."""

from __future__ import annotations

import pytest

pytest.importorskip("httptools")
pytest.importorskip("pyarrow")

from docs_blocks import blocks
from penstock.cli import main as cli
from penstock_local import LocalKinesis


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with incident.penstock."""
    folder = tmp_path_factory.mktemp("recording")
    with LocalKinesis() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environ().items():
            patch.setenv(name, value)
        patch.chdir(folder)
        server.create_stream("orders", 2)
        for number in range(20):
            server.client("kinesis").put_record(
                StreamName="orders", Data=f'{{"amount": {number}}}', PartitionKey="k"
            )
        assert cli.main(["record", "orders", "--since", "1h", "-o", "incident.penstock"]) == 0
    return folder


def programs(page):
    return [block.text for block in blocks(page) if block.language == "python"]


@pytest.mark.parametrize("program", programs("docs/recording-format.md"))
def test_another_program_reads_the_file(folder, monkeypatch, program):
    monkeypatch.chdir(folder)
    names = {}
    exec(program, names)
    assert names["table"].num_rows == 20


@pytest.mark.parametrize("program", programs("docs/record-replay.md"))
def test_the_tests_of_the_replay_page_pass(folder, monkeypatch, penstock_replay, program):
    monkeypatch.chdir(folder)
    names = {}
    exec(program, names)
    tests = [value for name, value in names.items() if name.startswith("test_")]
    assert tests
    for test in tests:
        test(penstock_replay) if "penstock_replay" in test.__code__.co_varnames else test()
