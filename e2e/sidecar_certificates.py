"""Real certificates between operator and sidecars: a CA, leaves with names and ages, replaced as
files. For tests and benches: the keys lie unencrypted beside them.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from retire.sidecar.config import Tls

SERVER = "sidecar.retire.internal"
OPERATOR = "operator.retire.internal"
_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Authority:
    """A certificate authority."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def make(cls, name: str) -> Authority:
        """A new one."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(name)
        builder = _builder(subject, subject, key, days=1)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        return cls(builder.sign(key, hashes.SHA256()), key)

    def issue(
        self,
        folder: Path,
        *names: str,
        days: float = 1,
        uri: str = "",
        trust: Authority | None = None,
    ) -> Tls:
        """A certificate in files. ``days`` below 0: it has expired. ``trust``: another CA file."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name("leaf"), self.certificate.subject, key, days=days)
        alternative: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
        alternative += [x509.UniformResourceIdentifier(uri)] if uri else []
        if alternative:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternative), False)
        leaf = builder.sign(self.key, hashes.SHA256())
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        folder.mkdir(exist_ok=True)
        tls = Tls(folder / "tls.crt", folder / "tls.key", folder / "ca.crt")
        for path, pem in (
            (tls.key, private),
            (tls.cert, _pem(leaf)),
            (tls.ca, _pem((trust or self).certificate)),
        ):
            replace(path, pem)
        return tls


def replace(path: Path, content: bytes) -> None:
    """As a Secret's volume does it: another file under the same name, at once."""
    new = path.with_name(path.name + ".new")
    new.write_bytes(content)
    new.replace(path)


def env(tls: Tls) -> dict[str, str]:
    """What a process is told of its files."""
    return {
        "RETIRE_TLS_CERT": str(tls.cert),
        "RETIRE_TLS_KEY": str(tls.key),
        "RETIRE_TLS_CA": str(tls.ca),
    }


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, days: float
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 3 * _DAY)
        .not_valid_after(now + days * _DAY)
    )
