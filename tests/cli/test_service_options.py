"""How long commands wait for the service."""

import argparse
import os
import subprocess
import sys

import pytest

from penstock.cli import service_options

ARGS = argparse.Namespace(region="eu-west-1", endpoint_url=None, profile=None)


def test_no_connection_and_no_answer_is_waited_for_longer_than_the_deadline():
    options = service_options.options_of(ARGS)
    assert options.connect_timeout_s <= options.deadline_s
    assert options.read_timeout_s <= options.deadline_s


def test_the_connection_is_repeated_for_another_command_without_a_password():
    assert service_options.connection_arguments_of(ARGS) == ("--region", "eu-west-1")
    given = argparse.Namespace(region=None, endpoint_url="http://me:secret@localhost:4567", profile="my own")
    expected = ("--endpoint-url", "http://localhost:4567", "--profile", "my own")
    assert service_options.connection_arguments_of(given) == expected


@pytest.mark.parametrize(
    "start",
    ["", "sso_session = corp\n[sso-session corp]\n"],
    ids=["of a profile", "of an sso-session"],  # botocore renews them in modules of their own
)
def test_an_expired_login_is_one_line(tmp_path, start):
    config = tmp_path / "config"
    config.write_text(
        "[profile dev]\nregion = us-east-1\nendpoint_url = http://127.0.0.1:9\nsso_account_id = 123456789012\nsso_role_name = dev\n"
        f"{start}sso_start_url = https://x.awsapps.com/start\nsso_region = us-east-1\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "streams", "list", "--profile", "dev"],
        env=environment | {"AWS_CONFIG_FILE": str(config), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "log in again: aws sso login" in done.stderr
