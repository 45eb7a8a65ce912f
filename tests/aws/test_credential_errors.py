"""What issues the credentials fails in ways that botocore has no error for: the error says so, and shows nothing that was printed."""

from __future__ import annotations

import json
import os
import traceback
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from penstock.aws.aws_options import AwsOptions
from penstock.aws.connection import client_for
from penstock.aws.fan_out import AwsFanOut
from penstock.aws.kinesis import AwsKinesis
from penstock.errors import AccessDenied
from penstock.ports.kinesis import IteratorStart, IteratorType, PutEntry
from penstock_local import LocalKinesis

PRINTED = {
    "no_json": (b"SecretAccessKey=HIDDEN", "JSONDecodeError in json.decoder"),
    "nothing": (b"", "JSONDecodeError in json.decoder"),
    "no_text": (b"\xffHIDDEN", "UnicodeDecodeError"),
    "no_object": (b'["HIDDEN"]', "AttributeError"),
    "a_number": (
        b'{"Version": 1, "AccessKeyId": 1234, "SecretAccessKey": "HIDDEN", "Expiration": "2099-01-01T00:00:00Z"}',
        "A key or its token is not text",
    ),
    "another_version": (b'{"Version": "HIDDEN"}', "Version is not 1"),
    "no_time": (
        b'{"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b", "Expiration": "HIDDEN"}',
        "ParserError in dateutil",
    ),
}


@pytest.fixture(scope="module")
def server():
    with LocalKinesis(limits=False) as running:
        running.create_stream("s")
        yield running


@pytest.fixture
def profile(server, monkeypatch, tmp_path):
    """Return what writes a profile, and the options that name it."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))

    def write(name, *lines):
        (tmp_path / "config").write_text("\n".join([f"[profile {name}]", "region = us-east-1", *lines]))
        return AwsOptions(profile=name, endpoint_url=server.endpoint_url)

    return write


def failing(act):
    """Return the error of a call, having looked that nothing which was printed is in it or its causes."""
    with pytest.raises(AccessDenied) as caught:
        act()
    assert "HIDDEN" not in "".join(traceback.format_exception(caught.value))
    return str(caught.value)


@pytest.mark.parametrize("case", PRINTED)
def test_a_credential_process_that_prints_something_else_is_an_error_of_credentials(case, profile, tmp_path):
    printed, message = PRINTED[case]
    (tmp_path / "printed").write_bytes(printed)
    options = profile(f"first_{case}", f"credential_process = cat {tmp_path / 'printed'}")
    text = failing(lambda: AwsKinesis(options).fetch_summary("s"))
    assert message in text
    assert "a credential_process has to print one JSON object" in text


@pytest.mark.parametrize("case", PRINTED)
def test_so_it_is_when_credentials_are_renewed_and_a_write_has_a_known_outcome(case, profile, tmp_path):
    printed, message = PRINTED[case]
    gone = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
    keys = {"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b", "Expiration": gone}
    (tmp_path / "printed").write_text(json.dumps(keys))
    options = profile(f"renewed_{case}", f"credential_process = cat {tmp_path / 'printed'}")
    client_for("kinesis", options)
    (tmp_path / "printed").write_bytes(printed)
    assert message in failing(lambda: AwsKinesis(options).put_records("s", [PutEntry(b"x", "k")]))
    start = IteratorStart(IteratorType.TRIM_HORIZON)
    assert message in failing(lambda: AwsKinesis(options).fetch_iterator("s", "shardId-000000000000", start))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("credential_process = /nowhere/keys --password HIDDEN", "No such file or directory: /nowhere/keys"),
        (
            "role_arn = arn:aws:iam::123456789012:role/reader\nweb_identity_token_file = /nowhere/token",
            "No such file or directory: /nowhere/token",
        ),
        ("credential_process = cat 'HIDDEN", "ValueError in shlex"),
        ("credential_process = false HIDDEN", "The credential_process failed and printed no error"),
    ],
)
def test_a_program_or_a_token_that_is_not_there_is_named(line, message, profile):
    options = profile(f"missing_{len(line)}", line)
    assert message in failing(lambda: AwsKinesis(options).put_records("s", [PutEntry(b"x", "k")]))


CONSUMER = "arn:aws:kinesis:us-east-1:123456789012:stream/s/consumer/c:1"
SSO = (
    "sso_account_id = 123456789012",
    "sso_role_name = reader",
    "sso_region = us-east-1",
    "sso_start_url = https://a.test/start",
)


@pytest.mark.parametrize("is_expired", [False, True])
def test_a_login_that_is_missing_or_over_is_an_error_of_credentials(
    profile, monkeypatch, tmp_path, is_expired
):
    """Not a mistake of the request; the way out is the command."""
    monkeypatch.setenv("HOME", str(tmp_path))
    token = {"startUrl": "https://a.test/start", "accessToken": "HIDDEN", "expiresAt": "2020-01-01T00:00:00Z"}
    if is_expired:
        monkeypatch.setattr("botocore.utils.SSOTokenLoader.__call__", lambda *_, **__: token)
    options = profile(f"login_{is_expired}", *SSO)
    start = IteratorStart(IteratorType.LATEST)
    for act in (
        lambda: AwsKinesis(options).fetch_summary("s"),
        lambda: AwsFanOut(options).subscribe(CONSUMER, "shardId-000000000000", start, print),
    ):
        text = failing(act)
        assert "SSO" in text
        assert text.endswith(f"; log in again: aws sso login --profile login_{is_expired}")


@pytest.mark.parametrize(
    ("environment", "command"),
    [
        ({"AWS_PROFILE": "of the team"}, "aws sso login --profile 'of the team'"),
        ({"AWS_PROFILE": "b", "AWS_DEFAULT_PROFILE": "a"}, "aws sso login --profile a"),
        ({"AWS_PROFILE": "default"}, "aws sso login --profile default"),
    ],
)
def test_a_login_is_that_of_the_profile_in_the_environment(
    environment, command, profile, server, monkeypatch, tmp_path
):
    monkeypatch.setenv("HOME", str(tmp_path))
    profile(environment.get("AWS_DEFAULT_PROFILE", environment["AWS_PROFILE"]).join("''"), *SSO)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    options = AwsOptions(endpoint_url=server.endpoint_url, read_timeout_s=len(command))
    text = failing(lambda: AwsKinesis(options).fetch_summary("s"))
    assert text.endswith(f"; log in again: {command}")


def test_a_role_that_asks_for_a_code_names_the_way_out_without_a_terminal(profile, monkeypatch, tmp_path):
    def refuse(*_):
        raise OSError("no terminal")

    monkeypatch.setattr("getpass.os", SimpleNamespace(open=refuse, O_RDWR=0, O_NOCTTY=0))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    (tmp_path / "keys").write_text("[keys]\naws_access_key_id = a\naws_secret_access_key = b\n")
    role = "role_arn = arn:aws:iam::123456789012:role/reader\nsource_profile = keys\nmfa_serial = arn:aws:iam::1:mfa/me"
    options = profile("code", role)
    for _ in range(2):  # botocore has another error the second time
        text = failing(lambda: AwsKinesis(options).fetch_summary("s"))
        assert "asks for an MFA code (mfa_serial)" in text
        assert "aws configure export-credentials" in text


def test_a_profile_that_names_no_source_is_an_error_of_credentials(profile):
    options = profile("assumes", "role_arn = arn:aws:iam::123456789012:role/reader", "source_profile = gone")
    assert 'source_profile "gone"' in failing(lambda: AwsKinesis(options).fetch_summary("s"))
