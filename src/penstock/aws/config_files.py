"""Faults in the files of the AWS configuration for which botocore has no error, or an error without a line number."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import botocore.exceptions as sdk

from penstock.errors import OptionError

_FILES: Final = {
    "AWS_CONFIG_FILE": "~/.aws/config",
    "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
}
_TEXTS: Final = (
    "region",
    "endpoint_url",
    "services",
    "defaults_mode",
    "ca_bundle",
    "role_arn",
    "source_profile",
    "credential_process",
    "sso_session",
    "web_identity_token_file",
    "aws_access_key_id",
    "aws_secret_access_key",
)
"""Keys of a profile that botocore takes for text without a check."""
_NUMBERS: Final = ("metadata_service_timeout", "metadata_service_num_attempts")
"""Keys of a profile that botocore converts to numbers when it searches for credentials."""
_SERVICES: Final = ("kinesis", "dynamodb", "cloudwatch", "s3", "sqs", "glue", "sts")


def check_forms(session: Any, *, has_keys: bool) -> None:
    """Refuse keys of the configuration that have an indented block in place of a text, or a text in place of a block.

    Args:
        has_keys: Whether the options have access keys. Without access keys, botocore searches for credentials and reads `_NUMBERS`.

    Raises:
        OptionError: A key of the profile or of its section of services has the wrong form, or a number cannot be read.
    """
    profile = session.get_scoped_config()
    profile_name = f"profile {session.get_config_variable('profile') or 'default'}"
    for key in _TEXTS:
        if isinstance(profile.get(key), dict):
            raise _wrong_form(profile_name, f"{key} is followed by an indented block: write KEY = VALUE")
    if not isinstance(profile.get("api_versions", {}), dict):
        raise _wrong_form(profile_name, "api_versions has no indented block below it")
    for key in () if has_keys else _NUMBERS:
        try:
            session.get_config_variable(key)
        except (ValueError, TypeError):
            raise _wrong_form(profile_name, f"{key}, or AWS_{key.upper()}, is not a whole number") from None
    name = profile.get("services")
    services = session.full_config.get("services", {}).get(name, {})
    for key in _SERVICES:  # Penstock opens only these; botocore reads only its client's key
        if not isinstance(services.get(key, {}), dict):
            raise _wrong_form(
                f"section [services {name}]",
                f"{key} has no indented block below it, for instance endpoint_url = URL",
            )


def _wrong_form(place: str, fault: str) -> OptionError:
    return OptionError(f"{' or '.join(_paths().values())}: {place}: {fault}")


def parse_remedy(error: sdk.ConfigParseError) -> str:
    """Return the remedy for a file that botocore cannot parse. It quotes no line, which may be a secret."""
    line = getattr(error.kwargs.get("error"), "lineno", None)
    at = "" if line is None else f"check line {line}: "
    return (
        f"{at}it has to be UTF-8 without a byte order mark, each section once, with one KEY = VALUE a line below [default] or "
        "[profile NAME]"
    )


def unread_files() -> str:
    """Return a text that names the files that botocore skips because it cannot read them; empty if there are none."""
    texts = []
    for variable, path in _paths().items():
        try:
            if Path(path).is_fifo():  # to open one may wait without an end
                texts.append(f"; {path} is a pipe, which botocore does not read")
            else:
                Path(path).open("rb").close()
        except FileNotFoundError:
            if os.environ.get(variable):
                texts.append(f"; {variable}={path} does not exist")
        except OSError as error:
            texts.append(f"; {path} cannot be read: {error.strerror}")
    return "".join(texts)


def _paths() -> dict[str, str]:
    return {
        variable: os.path.expanduser(os.path.expandvars(os.environ.get(variable) or default_path))  # noqa: PTH111 - Path's raises without a home
        for variable, default_path in _FILES.items()
    }
