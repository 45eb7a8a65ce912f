"""The certificate of a server that speaks TLS: made at the start for the names of this machine, or one that is given."""

from __future__ import annotations

import shutil
import ssl
import tempfile
from collections.abc import Iterable
from pathlib import Path

from penstock_local.errors import OptionError

_NAMES = ("localhost", "127.0.0.1", "::1")


class Certificate:
    """A certificate with its key, and the file by which clients know it.

    Args:
        cert: PEM file of a certificate with what signed it, up to the root; None makes an authority and a
            certificate that last as long as the server.
        key: PEM file of its key; needed with `cert`.
        names: Host names to make a certificate for, beside those of this machine.

    Attributes:
        context: For the server's side of a handshake; offers HTTP/2 and HTTP/1.1.
        ca_bundle: PEM file that clients trust.

    Raises:
        OptionError: The files cannot be used.
    """

    def __init__(self, cert: str | Path | None, key: str | Path | None, names: Iterable[str] = ()) -> None:
        self._folder: Path | None = None
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.set_alpn_protocols(["h2", "http/1.1"])
        if cert is None:
            self._make_certificate(names)
        else:
            self.ca_bundle = Path(cert).resolve()
            try:
                self.context.load_cert_chain(cert, key)
            except OSError as error:
                raise OptionError(f"cannot use the certificate {cert} with the key {key}: {error}") from error

    def _make_certificate(self, names: Iterable[str]) -> None:
        import trustme

        authority = trustme.CA(organization_name="penstock-local")
        authority.issue_cert(*_NAMES, *names).configure_cert(self.context)
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-tls-"))
        self.ca_bundle = self._folder / "ca.pem"
        authority.cert_pem.write_to_path(str(self.ca_bundle))

    def remove(self) -> None:
        """Remove the files that were made."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
