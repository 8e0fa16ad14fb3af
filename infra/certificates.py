"""An authority of our own, and one certificate that a Dask scheduler, its workers and its clients show each other."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

YEARS = 5
AUTHORITY, CERTIFICATE, KEY = "dask_ca", "dask_certificate", "dask_key"


def make_certificates(folder: Path, mode: int = 0o600) -> None:
    """The three PEM files in ``folder``, unless they are there.

    The authority's own key is kept by nobody: nothing else is ever signed.
    """
    if all((folder / name).exists() for name in (AUTHORITY, CERTIFICATE, KEY)):
        return
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = _name("congruence authority")
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for name, content in {
        AUTHORITY: _certificate(issuer, issuer, authority_key.public_key(), authority_key),
        CERTIFICATE: _certificate(_name("congruence dask"), issuer, key.public_key(), authority_key),
        KEY: private,
    }.items():
        (folder / name).unlink(missing_ok=True)
        (folder / name).touch(0o600)
        (folder / name).write_bytes(content)
        (folder / name).chmod(mode)


def _certificate(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, signer: ec.EllipticCurvePrivateKey
) -> bytes:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder(issuer, subject, public, x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=365 * YEARS))
        .add_extension(x509.BasicConstraints(ca=subject == issuer, path_length=None), critical=True)
    )
    return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
