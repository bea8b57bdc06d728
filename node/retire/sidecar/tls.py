"""The certificates of the TCP listener, read anew when their files change. No restart, no timer.

gRPC asks before every handshake, from threads of its own. Must never decide who may call.
"""

from __future__ import annotations

import logging
import ssl
import threading
from typing import TYPE_CHECKING, Any, Final

import grpc

from retire.protocol.errors import InvalidField
from retire.sidecar.files import Watched
from retire.telemetry import names
from retire.telemetry.logs import fields

if TYPE_CHECKING:
    from retire.sidecar.config import Tls

_log = logging.getLogger(names.LOGGER_SIDECAR)
_READS_MAX: Final = 5


class Certificates:
    """Key, certificate and CA of one listener: the last set of files that fitted together."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._files = Watched((tls.cert, tls.key, tls.ca))
        self._reading = threading.Lock()

    def credentials(self) -> grpc.ServerCredentials:
        """For ``add_secure_port``; InvalidField when the files do not fit together."""
        return grpc.dynamic_ssl_server_credentials(
            self._read(), self.fetch, require_client_authentication=True
        )

    def fetch(self) -> Any:
        """What the next handshake uses; None: as before. Must not raise: gRPC would refuse all."""
        with self._reading:
            if not self._files.changed():
                return None
            try:
                found = self._read()
            except (InvalidField, OSError) as error:  # until they change again
                _log.error(
                    "new TLS files do not fit; the old ones stay in use", extra=fields(why=error)
                )
                return None
            _log.info("TLS files changed: new ones in use", extra=fields(cert=self._tls.cert))
            return found

    def _read(self) -> Any:
        """All three files as they are at one moment."""
        for _ in range(_READS_MAX):
            self._files.mark()
            found = grpc.ssl_server_certificate_configuration(
                [(self._tls.key.read_bytes(), self._tls.cert.read_bytes())],
                root_certificates=self._tls.ca.read_bytes(),
            )
            wrong = self._misfit()
            if not self._files.changed():
                if wrong is not None:
                    raise wrong
                return found
        raise InvalidField("RETIRE_TLS_CERT", str(self._tls.cert), "left alone while it is read")

    def _misfit(self) -> InvalidField | None:
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._tls.cert, self._tls.key)
        except (ssl.SSLError, OSError) as error:
            must_be = f"the PEM certificate of RETIRE_TLS_KEY ({error})"
            return InvalidField("RETIRE_TLS_CERT", str(self._tls.cert), must_be)
        try:
            context.load_verify_locations(self._tls.ca)
        except (ssl.SSLError, OSError) as error:
            must_be = f"the PEM certificates of a CA ({error})"
            return InvalidField("RETIRE_TLS_CA", str(self._tls.ca), must_be)
        return None
