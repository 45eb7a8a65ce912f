"""Failures to connect: the network, its proxy, and the certificates of the other side.

botocore's errors do not always show whether anything was sent: a TLS error may come from the handshake or from an
answer. The traceback shows where it was raised.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

import botocore.exceptions as sdk
import urllib3
import urllib3.exceptions as pool_errors
from botocore.httpsession import get_cert_path
from botocore.utils import get_environ_proxies

from penstock.errors import OptionError

_OPENED_IN: Final = ("urllib3.connection", "connect")  # docs/internals-used.md
_STEPS_MAX: Final = 10
_REASON_CHARACTERS_MAX: Final = 300
_CERTIFICATE_LIBRARIES: Final = ("X509", "PEM")
TRUST_REMEDY: Final = (
    "check that the endpoint is the right one, and which certificates are trusted: AWS_CA_BUNDLE or the profile's ca_bundle has to name a "
    "PEM file with the authority that signed the endpoint's certificate, or that of a proxy that opens TLS; and this machine's clock"
)
PROXY_REMEDY: Final = "check the user and the password in HTTPS_PROXY or HTTP_PROXY, percent-encoded"


def proxy_for(url: str) -> str | None:
    """Return the proxy that the environment names for an address, as botocore finds it; None if there is none.

    Raises:
        OptionError: The environment's value is not the address of a proxy. It is not shown, since it may hold a password.
    """
    scheme = urlsplit(url).scheme
    proxy: str | None = get_environ_proxies(url).get(scheme)
    if not proxy:
        return None
    if not _may_be_proxy(proxy):
        raise OptionError(
            f"{scheme.upper()}_PROXY (or {scheme}_proxy) names no proxy that can be used for {url}: expected http://HOST:PORT or "
            "http://USER:PASSWORD@HOST:PORT, each special character of the user and the password percent-encoded. "
            "Its value is not shown, since it may hold a password"
        )
    return proxy


def _may_be_proxy(proxy: str) -> bool:
    full = proxy if "://" in proxy else f"http://{proxy.removeprefix('//')}"
    try:
        parts = urlsplit(full)
        is_address = bool(parts.hostname) and parts.port != 0
        urllib3.util.parse_url(full)
    except (ValueError, pool_errors.LocationParseError):
        return False
    # A special character in a password ends the address early, and the rest has the @.
    is_cut = "@" in f"{parts.path}{parts.query}{parts.fragment}"
    return parts.scheme in ("http", "https") and is_address and not is_cut


def trusted_file(session: Any) -> str:
    """Return the file of certificates that botocore trusts in a session."""
    chosen = session.get_config_variable("ca_bundle")
    return str(chosen or os.environ.get("REQUESTS_CA_BUNDLE") or get_cert_path(verify=True))


def is_connection_error(error: Exception) -> bool:
    """Return whether one of the SDK's errors was raised while a connection was opened: nothing was sent."""
    for step in _steps(error):
        trace = step.__traceback__
        while trace is not None:
            frame = trace.tb_frame
            if (frame.f_globals.get("__name__"), frame.f_code.co_name) == _OPENED_IN:
                return True
            trace = trace.tb_next
    return False


def is_certificate_error(error: Exception) -> bool:
    """Return whether the other side's certificate is not trusted here; trying again at once cannot help."""
    root = _root_cause(error)
    if not isinstance(error, sdk.SSLError) or root is None:
        return False
    if isinstance(root, ssl.SSLError):
        return isinstance(root, ssl.SSLCertVerificationError) or root.library in _CERTIFICATE_LIBRARIES
    return isinstance(root, (ValueError, OSError))  # another host in it, or an unreadable file


def is_refused_by_proxy(error: Exception) -> bool:
    """Return whether a proxy does not accept the user and the password."""
    return isinstance(error, sdk.ProxyConnectionError) and "407" in str(_root_cause(error))


def reason_of(error: Exception) -> str:
    """Return the root cause of the SDK's error in brackets, or an empty text if the error's own text contains it."""
    reason = str(_root_cause(error) or "")[:_REASON_CHARACTERS_MAX]
    return f" ({reason})" if reason and reason not in str(error) else ""


def _root_cause(error: Exception) -> BaseException | None:
    """Return the root cause of the SDK's error; None if it has no cause."""
    steps = list(_steps(error))
    return steps[-1] if len(steps) > 1 else None


def _steps(error: Exception) -> Iterator[BaseException]:
    """Yield an error of the SDK, then its causes, step by step."""
    # `__context__` is left out: it may be the error of an earlier call, which failed in another way.
    step: BaseException | None = error
    for _ in range(_STEPS_MAX):
        if step is None:
            return
        yield step
        passed_error = getattr(step, "kwargs", {}).get("error")
        causes = (passed_error, step.__cause__, *step.args)
        step = next((each for each in causes if isinstance(each, BaseException)), None)
