"""Each published distribution is built as a release builds it, installed alone into an empty environment, and used there."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import penstock
import penstock_local
from built_distributions import FOLDERS, Built, build, new_environment, run

PUT_AND_GET = """
import os, subprocess, sys
import boto3
server = subprocess.Popen([os.path.join(sys.prefix, "bin", "penstock-local"), "--port", "0", "--shards", "orders=1", "--stop-on-eof"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
with server:
    for line in server.stdout:
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").strip().partition("=")
            os.environ[name] = value.strip("'")
        if line.startswith("# Streams"):
            break
    client = boto3.client("kinesis")
    client.put_record(StreamName="orders", Data=b"first", PartitionKey="k")
    shard = client.list_shards(StreamName="orders")["Shards"][0]["ShardId"]
    iterator = client.get_shard_iterator(StreamName="orders", ShardId=shard, ShardIteratorType="TRIM_HORIZON")
    print(client.get_records(ShardIterator=iterator["ShardIterator"])["Records"][0]["Data"].decode())
    server.stdin.close()
    server.stdout.read()
assert server.returncode == 0, server.returncode
assert not [name for name in sys.modules if name.partition(".")[0] == "penstock"]
"""


@pytest.mark.parametrize("name", FOLDERS)
def test_a_second_build_has_the_same_bytes(builder, built, tmp_path, name):
    again = build(builder, name, tmp_path)
    for first, second in zip(built[name], again, strict=True):
        assert first.name == second.name
        assert digest(first) == digest(second)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_each_file_holds_its_own_packages_only(built):
    folders = {name: packages_of(files) for name, files in built.items()}
    assert folders == {"penstock": {"penstock", "pyspark_penstock"}, "penstock_local": {"penstock_local"}}
    with zipfile.ZipFile(built["penstock"].wheel) as wheel:
        names = wheel.namelist()
    assert "penstock/py.typed" in names
    assert [name for name in names if name.startswith("penstock/local/")] == [
        "penstock/local/__init__.py",
        "penstock/local/__main__.py",
    ]
    assert not [name for name in names if name.startswith("penstock/sim")]


def packages_of(files: Built) -> set[str]:
    with zipfile.ZipFile(files.wheel) as wheel:
        in_wheel = {name.partition("/")[0] for name in wheel.namelist() if ".dist-info" not in name}
    with tarfile.open(files.sdist) as sdist:
        in_sdist = {
            name.split("/")[2] for name in sdist.getnames() if name.count("/") > 2 and "/src/" in name
        }
    assert in_wheel == in_sdist
    return in_wheel


def test_both_have_the_same_version(built):
    assert penstock.__version__ == penstock_local.__version__
    for files in built.values():
        assert f"-{penstock.__version__}" in files.wheel.name
        assert f"-{penstock.__version__}" in files.sdist.name


def test_the_server_alone_serves_a_put_and_a_get(built, tmp_path):
    python = new_environment(tmp_path / "alone", built["penstock_local"].wheel)
    assert "penstock-local" in run(python.parent / "penstock-local", "--help", cwd=tmp_path)
    assert run(python, "-c", PUT_AND_GET, cwd=tmp_path) == "first\n"
    listed = run(python, "-m", "pip", "list", "--format", "freeze", "--disable-pip-version-check")
    assert [line for line in listed.splitlines() if line.startswith("penstock")] == [
        f"penstock-local=={penstock_local.__version__}"
    ]


def test_the_library_alone_can_be_imported_and_has_its_commands(built, tmp_path):
    python = new_environment(tmp_path / "alone", built["penstock"].sdist)
    program = (
        "from penstock import *; import penstock.testing, penstock.errors, sys; print(penstock.__version__)"
    )
    assert run(python, "-c", program, cwd=tmp_path).strip() == penstock.__version__
    command = python.parent / "penstock"
    assert "consume" in run(command, "--help", cwd=tmp_path)
    for name, remedy in (
        ("local", "pip install 'penstock[local]'"),
        ("demo", "part of the repository"),
        ("simulate", "part of the repository"),
        ("sql x", "pip install 'penstock[sql]'"),
        ("record orders --since 1h -o file --region us-east-1", "pip install 'penstock[arrow]'"),
    ):
        answer = subprocess.run(
            [command, *name.split()], capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60
        )
        assert (answer.returncode, answer.stdout) == (1, "")
        assert remedy in answer.stderr
        assert answer.stderr.count("\n") == 1
    assert sys.executable != str(python)
