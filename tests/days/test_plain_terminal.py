"""An engineer looks at a stream from a server whose terminal is not UTF-8: over ssh, from cron, with `head` and a file."""

import json

import pytest

CITIES = ["東京", "Köln", "Zürich", "Łódź", "plain"]
PLAIN = {"PYTHONIOENCODING": "latin-1"}


@pytest.fixture
def visits(local_kinesis):
    """A stream whose keys are names of cities."""
    local_kinesis.create_stream("visits", shards=2)
    client = local_kinesis.client("kinesis")
    for city in CITIES:
        client.put_record(StreamName="visits", Data=f"a visit to {city}".encode(), PartitionKey=city)
    return local_kinesis


def test_what_the_terminal_does_not_have_is_spelled_out(visits, programs):
    seen = programs.penstock(
        "tail", "visits", "--from", "TRIM_HORIZON", "--until-end", name="tail", PYTHONIOENCODING="ascii"
    )
    assert seen.wait() == 0
    assert len(seen.lines()) == len(CITIES)
    assert sum(r"a visit to \u6771\u4eac" in line for line in seen.lines()) == 1
    assert sum(r"a visit to K\xf6ln" in line for line in seen.lines()) == 1
    assert seen.log() == ""
    shards = programs.penstock("shards", "visits", name="shards", PYTHONIOENCODING="ascii")
    assert shards.wait() == 0
    assert shards.lines()[-1] == "2 open, 0 closed"


def test_a_script_reads_the_same_json_whatever_the_terminal_is(visits, programs):
    found = []
    for name, environ in (("plain", PLAIN), ("c", {"LC_ALL": "C", "PYTHONUTF8": "0"}), ("utf8", {})):
        words = ("tail", "visits", "--from", "TRIM_HORIZON", "--until-end", "--json")
        program = programs.penstock(*words, name=name, **environ)
        assert program.wait() == 0
        found.append(
            sorted((line["partition_key"], line["data"]) for line in map(json.loads, program.lines()))
        )
    assert found[0] == found[1] == found[2] == sorted((city, f"a visit to {city}") for city in CITIES)
