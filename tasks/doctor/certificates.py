"""The TLS certificates of a Dask cluster: whether they are there, fit together, and for how long."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from congruence.tasks.doctor.findings import Finding, fine, warning, wrong
from congruence.tasks.settings.cluster import TlsSettings

PLACE = "Dask's certificates"
SOON = datetime.timedelta(days=30)
_ANEW = "make new ones (`python infra/make_secrets.py` after deleting its three dask_ files) and start Dask with them"


def certificates(files: TlsSettings) -> Iterator[Finding]:
    """Whether ``files`` can be read, have not expired nor soon will, and the key is that of the certificate."""
    absent = [(name, file) for name, file in files if not file.is_file()]
    for name, file in absent:
        yield wrong(PLACE, f"cluster.tls.{name}: there is no file {file}", "give the path of a PEM file")
    if absent:
        return
    authorities = x509.load_pem_x509_certificates(files.ca_file.read_bytes())
    certificate = x509.load_pem_x509_certificates(files.cert_file.read_bytes())[0]
    key = serialization.load_pem_private_key(files.key_file.read_bytes(), password=None)
    if key.public_key() != certificate.public_key():
        yield wrong(
            PLACE, f"{files.key_file} is not the key of {files.cert_file}", "give the two that were made together"
        )
    if not any(_signed_by(certificate, authority) for authority in authorities):
        remedy = "give the authority's file that scheduler and workers were started with"
        yield wrong(PLACE, f"none of {files.ca_file} has signed {files.cert_file}", remedy)
    for file, found in ((files.ca_file, authorities), (files.cert_file, [certificate])):
        yield from (_lasting(file, each) for each in found)


def _signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _lasting(file: Path, certificate: x509.Certificate) -> Finding:
    now, end = datetime.datetime.now(datetime.UTC), certificate.not_valid_after_utc
    if now < certificate.not_valid_before_utc:
        remedy = "set this machine's clock, or wait"
        return wrong(PLACE, f"{file} is valid from {certificate.not_valid_before_utc:%Y-%m-%d} on", remedy)
    if now > end:
        return wrong(PLACE, f"{file} expired on {end:%Y-%m-%d}", _ANEW)
    if now + SOON > end:
        return warning(PLACE, f"{file} expires on {end:%Y-%m-%d}, in {(end - now).days} days", _ANEW)
    return fine(PLACE, f"{file.name} is valid until {end:%Y-%m-%d}")
