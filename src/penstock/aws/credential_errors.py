"""Failures while botocore looked for credentials, for which it has no error class.

Examples are a `credential_process` that prints no JSON, or numbers for keys; a missing program or token file; an invalid time.
botocore lets the errors of `json`, `subprocess` and others through. They do not mention credentials, and some of them show secrets.
"""

from __future__ import annotations

from typing import Final

import botocore.exceptions as sdk
from botocore.parsers import ResponseParserError

from penstock.errors import PenstockError

_CREDENTIALS_MODULE: Final = "botocore.credentials"
_SIGNING_MODULE: Final = "botocore.auth"
_SDK_ERRORS: Final = (sdk.BotoCoreError, sdk.ClientError, ResponseParserError)
_STILL_EXPIRED: Final = "refreshed credentials are still expired"
"""The text of botocore's RuntimeError, which has no class of its own."""
_OTHER_VERSION: Final = "Unsupported version"
_EXPIRED_REMEDY: Final = (
    "Check what issues them (credential_process, role, instance), and this machine's clock"
)
_PROMPT_MODULE: Final = "getpass"
_MFA_REMEDY: Final = (
    "The profile's role asks for an MFA code (mfa_serial), and a service has no terminal to enter one: get temporary keys before "
    "(aws configure export-credentials --profile NAME --format env), or use a credential_process or a role without MFA"
)
_UNREADABLE_REMEDY: Final = (
    "Check what issues them: a credential_process has to print one JSON object with Version (1), AccessKeyId, SecretAccessKey and, if "
    "they expire, Expiration in ISO 8601; run it by hand. What it printed is not shown, since it may hold secrets"
)


def is_credentials_error(error: BaseException) -> bool:
    """Return whether an error was raised while botocore found or renewed credentials, or signed: nothing was sent yet."""
    modules = _modules_of(error)
    return _CREDENTIALS_MODULE in modules or _has_non_text_key(error, modules)


def credentials_error(error: Exception) -> sdk.CredentialRetrievalError | None:
    """Return an error of botocore's class, with our text, if credentials cannot be read; None for any other error.

    It does not show the output of a program or a service.
    """
    text = _text_for_known_error(error) or _text_for_unreadable_keys(error)
    return None if text is None else sdk.CredentialRetrievalError(provider="botocore's chain", error_msg=text)


def _text_for_known_error(error: Exception) -> str | None:
    """Return a text of ours for an error of botocore that lacks a remedy or shows too much; None for any other."""
    if isinstance(error, sdk.RefreshWithMFAUnsupportedError) or _PROMPT_MODULE in _modules_of(error):
        return _MFA_REMEDY
    if isinstance(error, RuntimeError) and _STILL_EXPIRED in str(error):
        return f"{error} {_EXPIRED_REMEDY}"
    if isinstance(error, sdk.CredentialRetrievalError) and _OTHER_VERSION in str(error):
        return f"Its Version is not 1. {_UNREADABLE_REMEDY}"
    if isinstance(error, sdk.CredentialRetrievalError) and not str(error.kwargs.get("error_msg")).strip():
        return f"The credential_process failed and printed no error. {_UNREADABLE_REMEDY}"
    return None


def _text_for_unreadable_keys(error: Exception) -> str | None:
    modules = _modules_of(error)
    if _has_non_text_key(error, modules):
        return f"A key or its token is not text. {_UNREADABLE_REMEDY}"
    # A PenstockError here comes from a log handler that writes the SDK's log lines to a stream.
    if isinstance(error, (*_SDK_ERRORS, PenstockError)) or _CREDENTIALS_MODULE not in modules:
        return None
    if isinstance(error, OSError):
        return f"{error.strerror}: {error.filename}. {_UNREADABLE_REMEDY}"
    if type(error) is ValueError and modules[-1].startswith("botocore."):
        return str(error)  # botocore's own words
    return f"{type(error).__name__} in {modules[-1]}. {_UNREADABLE_REMEDY}"


def sdk_error(raised: Exception) -> Exception | None:
    """Return the error that explains a failed call: of the SDK, of the system, or of the credentials. None for any other exception, which is a defect."""
    error = credentials_error(raised) or raised
    return error if isinstance(error, (*_SDK_ERRORS, OSError)) else None


def _has_non_text_key(error: BaseException, modules: list[str]) -> bool:
    """Return whether a request could not be signed because a key is not a text, for instance a number."""
    return isinstance(error, (TypeError, AttributeError)) and modules[-1] == _SIGNING_MODULE


def _modules_of(error: BaseException) -> list[str]:
    """Return the modules that an error passed through; the last one raised it."""
    modules, step = [""], error.__traceback__
    while step is not None:
        modules.append(str(step.tb_frame.f_globals.get("__name__", "")))
        step = step.tb_next
    return modules
