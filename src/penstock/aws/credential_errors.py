"""What failed while botocore looked for credentials, where it raises no error of its own.

A `credential_process` that prints no JSON, a program or a token file that is not there, a time that is none: botocore lets the
errors of `json`, `subprocess` and others through. They say nothing of credentials, and some of them show what was printed.
"""

from __future__ import annotations

from typing import Final

import botocore.exceptions as sdk
from botocore.parsers import ResponseParserError

_OF_CREDENTIALS: Final = "botocore.credentials"
_OF_THE_SDK: Final = (sdk.BotoCoreError, sdk.ClientError, ResponseParserError)
_STILL_EXPIRED: Final = "refreshed credentials are still expired"
"""Of botocore's plain RuntimeError."""
_OTHER_VERSION: Final = "Unsupported version"
_FETCHED_EXPIRED: Final = (
    "Check what issues them (credential_process, role, instance), and this machine's clock"
)
_UNREADABLE: Final = (
    "Check what issues them: a credential_process has to print one JSON object with Version (1), AccessKeyId, SecretAccessKey and, if "
    "they expire, Expiration in ISO 8601; run it by hand. What it printed is not shown, since it may hold secrets"
)


def is_of_credentials(error: BaseException) -> bool:
    """Return whether an error was raised while botocore looked for credentials or renewed them: nothing was sent yet."""
    return _OF_CREDENTIALS in _modules_of(error)


def credentials_error(error: Exception) -> sdk.CredentialRetrievalError | None:
    """Return botocore's error for one of credentials that is not botocore's; None for any other.

    It does not show what a program or a service has given out.
    """
    if isinstance(error, RuntimeError) and _STILL_EXPIRED in str(error):
        return _named(f"{error} {_FETCHED_EXPIRED}")
    if isinstance(error, sdk.CredentialRetrievalError) and _OTHER_VERSION in str(error):
        return _named(f"Its Version is not 1. {_UNREADABLE}")
    modules = _modules_of(error)
    if isinstance(error, _OF_THE_SDK) or _OF_CREDENTIALS not in modules:
        return None
    if isinstance(error, OSError):
        return _named(f"{error.strerror}: {error.filename}. {_UNREADABLE}")
    if type(error) is ValueError and modules[-1].startswith("botocore."):
        return _named(str(error))  # botocore's own words
    return _named(f"{type(error).__name__} in {modules[-1]}. {_UNREADABLE}")


def sdk_error(raised: Exception) -> Exception | None:
    """Return what failed in a call: an error of the SDK or of the system, or one of credentials in its place; None: a defect."""
    error = credentials_error(raised) or raised
    return error if isinstance(error, (*_OF_THE_SDK, OSError)) else None


def _named(text: str) -> sdk.CredentialRetrievalError:
    return sdk.CredentialRetrievalError(provider="botocore's chain", error_msg=text)


def _modules_of(error: BaseException) -> list[str]:
    """Return the modules that an error came through, the one that raised it last."""
    modules, step = [""], error.__traceback__
    while step is not None:
        modules.append(str(step.tb_frame.f_globals.get("__name__", "")))
        step = step.tb_next
    return modules
