"""The programs of docs/testing.md run as they are printed, in an environment that would lead elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.pytest_plugin import pytest_configure

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
ELSEWHERE = {
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    "AWS_ENDPOINT_URL_KINESIS": "http://127.0.0.1:9",
    "AWS_PROFILE": "of-somebody",
    "AWS_SESSION_TOKEN": "t",
    "AWS_MAX_ATTEMPTS": "1",
}


def run(*command: str, folder: Path) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PYTEST"))}
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=folder,
        env={**environ, **ELSEWHERE},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_tests_of_the_page_pass(tmp_path):
    tests = [program for program in PROGRAMS if "def test_" in program]
    for number, program in enumerate(tests):
        (tmp_path / f"test_{number}.py").write_text(program)
    said = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", ".", folder=tmp_path)
    assert f"{sum(program.count('def test_') for program in tests)} passed" in said


@pytest.mark.parametrize("program", [program for program in PROGRAMS if "def test_" not in program])
def test_the_other_programs_of_the_page_run(program, tmp_path):
    (tmp_path / "program.py").write_text(program)
    assert "['orders']" in run("program.py", folder=tmp_path)


def test_the_fixture_leaves_the_environment_as_it_was(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import os\n"
        "before = dict(os.environ)\n"
        "def test_first(local_kinesis):\n"
        "    assert os.environ['AWS_ENDPOINT_URL'] == local_kinesis.endpoint_url\n"
        "    assert {n for n in os.environ if n.startswith('AWS_')} == local_kinesis.environ().keys()\n"
        "def test_second():\n"
        "    names = before.keys() | os.environ.keys()\n"
        "    changed = {n for n in names if before.get(n) != os.environ.get(n)}\n"
        "    assert changed <= {'PYTEST_CURRENT_TEST'}\n"
    )
    assert "2 passed" in run("-m", "pytest", "-q", "-p", "no:cacheprovider", ".", folder=tmp_path)


def test_the_server_fixture_leaves_the_environment_alone_and_has_the_set_scope(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\nlocal_kinesis_server_scope = module\n")
    (tmp_path / "conftest.py").write_text("import os\nbefore = dict(os.environ)\nendpoints = set()\n")
    for name in ("first", "second"):
        (tmp_path / f"test_{name}.py").write_text(
            "import os\n"
            "from conftest import before, endpoints\n"
            "def test_one(local_kinesis_server):\n"
            "    changed = {n for n in before | os.environ if before.get(n) != os.environ.get(n)}\n"
            "    assert changed <= {'PYTEST_CURRENT_TEST'}\n"
            "    assert local_kinesis_server.client().list_streams()['StreamNames'] == []\n"
            "    local_kinesis_server.create_stream('orders')\n"
            "def test_two(local_kinesis_server):\n"
            "    assert local_kinesis_server.client().list_streams()['StreamNames'] == ['orders']\n"
            "def test_three(local_kinesis, local_kinesis_server):\n"
            "    assert os.environ['AWS_ENDPOINT_URL'] == local_kinesis.endpoint_url\n"
            "    assert local_kinesis.endpoint_url != local_kinesis_server.endpoint_url\n"
            "    assert local_kinesis.state()['streams'] == {}\n"
        )
    assert "6 passed" in run("-m", "pytest", "-q", "-p", "no:cacheprovider", ".", folder=tmp_path)


def test_a_scope_that_there_is_not_is_said_before_any_test_runs():
    class Config:
        def getini(self, _name):
            return "modul"

    with pytest.raises(
        pytest.UsageError, match="local_kinesis_server_scope = modul: expected one of session, package"
    ):
        pytest_configure(Config())


def test_a_profile_that_ignores_endpoints_does_not_lead_to_aws(local_kinesis, tmp_path):
    config = tmp_path / "config"
    config.write_text("[default]\nignore_configured_endpoint_urls = true\nregion = eu-west-1\n")
    code = "import boto3; print(boto3.client('kinesis').meta.endpoint_url)"
    environ = {**os.environ, **local_kinesis.environ(), "AWS_CONFIG_FILE": str(config)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == local_kinesis.endpoint_url


def test_options_without_a_name_in_the_marker_are_refused(tmp_path):
    (tmp_path / "test_orders.py").write_text(
        "import pytest\n"
        "@pytest.mark.local_kinesis({'limits': False})\n"
        "def test_orders(local_kinesis):\n"
        "    pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "takes options by name: @pytest.mark.local_kinesis(limits=False)" in done.stdout
