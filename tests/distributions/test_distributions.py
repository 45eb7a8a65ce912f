"""Each published distribution is built as a release builds it, installed alone into an empty environment, and used there."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

import penstock
import penstock_local

ROOT = Path(__file__).parents[2]
FOLDERS = {"penstock": ROOT, "penstock_local": ROOT / "local"}
BUILT_AT = "1764547200"
"""SOURCE_DATE_EPOCH of the builds; a release takes the time of its commit."""

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


class Built(NamedTuple):
    """The two files of a distribution."""

    wheel: Path
    sdist: Path


def run(*command: object, **settings: object) -> str:
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AWS_", "PIP_USER", "PYTHON"))
    }
    settings = {"env": environ, "timeout": 280, **settings}
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, **settings
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def new_environment(folder: Path, *packages: object) -> Path:
    """Return the Python of a new environment that has the packages."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    return python


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_environment(tmp_path_factory.mktemp("builder"), "hatchling>=1.25")


@pytest.fixture(scope="module")
def built(builder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Built]:
    return {name: build(builder, name, tmp_path_factory.mktemp(name)) for name in FOLDERS}


def build(builder: Path, name: str, folder: Path) -> Built:
    source = folder / "source"
    shutil.copytree(FOLDERS[name], source, ignore=left_out)
    environ = {**os.environ, "SOURCE_DATE_EPOCH": BUILT_AT}
    run(builder, "-m", "hatchling", "build", "-d", folder / "dist", cwd=source, env=environ)
    (wheel,) = (folder / "dist").glob("*.whl")
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    return Built(wheel, sdist)


def left_out(_folder: str, names: list[str]) -> list[str]:
    """Name what a fresh clone does not have, and what no distribution takes."""
    return [
        name
        for name in names
        if name.startswith((".venv", ".git", "."))
        or name in ("build", "dist", "artifacts", "tests", "docs", "bench", "node_modules", "__pycache__")
    ]


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
    ):
        answer = subprocess.run(
            [command, name], capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60
        )
        assert (answer.returncode, answer.stdout) == (1, "")
        assert remedy in answer.stderr
        assert answer.stderr.count("\n") == 1
    assert sys.executable != str(python)
