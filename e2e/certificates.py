"""Certificates of one throw-away cluster: its CA, its servers, its clients. P-256, valid one day.

Owns files below one folder. Must never be used outside tests: keys lie unencrypted beside the data.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_VALID: Final = dt.timedelta(days=1)
_SKEW: Final = dt.timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Where a certificate and its key lie, PEM."""

    cert: Path
    key: Path


def _name(common_name: str, organization: str = "") -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organization:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(parts)


def write_key(key: ec.EllipticCurvePrivateKey, path: Path) -> Path:
    """PKCS 8, PEM, readable by its owner."""
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(*pem, serialization.NoEncryption()))
    return path


def signing_key(folder: Path, name: str) -> KeyPair:
    """A bare key and its public half: what signs service account tokens."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = folder / f"{name}.pub"
    pem = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    public.write_bytes(key.public_key().public_bytes(*pem))
    return KeyPair(public, write_key(key, folder / f"{name}.key"))


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority and the folder it writes to."""

    folder: Path
    cert: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def create(cls, folder: Path, name: str = "e2e") -> Self:
        """A new one; its certificate is ``ca.crt`` in the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(name), _name(name), key)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        made = cls(folder, builder.sign(key, hashes.SHA256()), key)
        made.ca_file.write_bytes(made.cert.public_bytes(serialization.Encoding.PEM))
        return made

    @property
    def ca_file(self) -> Path:
        """The authority's own certificate, PEM."""
        return self.folder / "ca.crt"

    def server(self, name: str, hosts: Sequence[str]) -> KeyPair:
        """For a server that is called by any of ``hosts``, names or addresses."""
        names = x509.SubjectAlternativeName([_host(host) for host in hosts])
        return self._issue(name, _name(name), ExtendedKeyUsageOID.SERVER_AUTH, names)

    def client(self, user: str, group: str = "") -> KeyPair:
        """For a user of the API server, who is in ``group``."""
        subject = _name(user, group)
        return self._issue(user.replace(":", "-"), subject, ExtendedKeyUsageOID.CLIENT_AUTH, None)

    def _issue(
        self,
        file: str,
        subject: x509.Name,
        usage: x509.ObjectIdentifier,
        names: x509.SubjectAlternativeName | None,
    ) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(subject, self.cert.subject, key)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), False)
        if names is not None:
            builder = builder.add_extension(names, False)
        pair = KeyPair(self.folder / f"{file}.crt", self.folder / f"{file}.key")
        cert = builder.sign(self.key, hashes.SHA256())
        pair.cert.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        write_key(key, pair.key)
        return pair


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer)
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - _SKEW).not_valid_after(now + _VALID)
