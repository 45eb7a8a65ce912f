"""docs/embedded-kinesis.md names what there is: operations, options, control paths and kinds of faults."""

from __future__ import annotations

import argparse
import json
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from penstock_local import command, faults, request_model
from penstock_local.operations import dispatch

PAGE = (Path(__file__).parents[2] / "docs" / "embedded-kinesis.md").read_text(encoding="utf-8")


def first_cells(pattern: str) -> set[str]:
    """What begins a row of any table and looks like this."""
    return set(re.findall(rf"^\| `({pattern})", PAGE, re.MULTILINE))


def test_every_option_of_the_command_is_documented():
    parser = argparse.ArgumentParser(add_help=False)
    command.add_arguments(parser)
    shown = {a.option_strings[0] for a in parser._actions if a.help != argparse.SUPPRESS}
    assert first_cells(r"--[a-z-]+") == shown


def test_every_kind_of_fault_is_documented():
    table = PAGE.partition("| `kind` |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == faults.KINDS.keys()


def test_every_control_path_is_documented(rig):
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{rig.server.endpoint_url}/_penstock/nothing", timeout=60)
    with caught.value as error:
        said = json.load(error)["error"].partition("; there are ")[2]
    there = set(re.findall(r"(?:GET|POST|DELETE) /_penstock/\w+", said))
    assert there
    assert first_cells(r"(?:GET|POST|DELETE) /_penstock/\w+") == there


def documented_operations() -> dict[str, str]:
    """The documentation of each operation."""
    table = PAGE.partition("## Operations of Kinesis")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| ")]
    return {name: said.strip() for names, said in rows for name in re.findall(r"`([A-Z][A-Za-z]+)`", names)}


def test_every_operation_of_the_model_is_documented_as_answered_or_refused():
    documented = documented_operations()
    assert set(request_model.operations()) - documented.keys() == set()
    refused = {name for name, said in documented.items() if said.startswith("refused (501)")}
    assert (
        set(request_model.operations()) - refused == dispatch.OPERATIONS.keys() & request_model.operations()
    )


@pytest.mark.skipif(
    "ListQueues" not in request_model.operations(), reason="the newest boto3 knows all that is answered"
)
def test_every_operation_that_is_answered_is_in_the_model():
    assert dispatch.OPERATIONS.keys() - request_model.operations() == set()
