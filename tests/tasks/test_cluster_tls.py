"""TLS to a scheduler: with certificates of one authority it works; without them, or with another's, it does not."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from distributed import LocalCluster
from distributed.security import Security

from congruence.tasks.dask.clusters import dask_client
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.settings.computing import ClusterSettings, TlsSettings


def certificates(folder: Path) -> TlsSettings:
    """A certificate that signs for itself, as authority and as what it signs for."""
    folder.mkdir()
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "congruence")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "key.pem").write_bytes(secret)
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    own = folder / "certificate.pem"
    return TlsSettings(ca_file=own, cert_file=own, key_file=folder / "key.pem")


def test_a_scheduler_with_tls_answers_those_whom_its_authority_knows(tmp_path: Path) -> None:
    ours, other = certificates(tmp_path / "ours"), certificates(tmp_path / "other")
    files = {
        f"tls_{role}_{part}": str(file)
        for role in ("scheduler", "worker", "client")
        for part, file in (("cert", ours.cert_file), ("key", ours.key_file))
    }
    security = Security(tls_ca_file=str(ours.ca_file), require_encryption=True, **files)
    with LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=False,
        protocol="tls://",
        security=security,
        dashboard_address="127.0.0.1:0",
    ) as cluster:
        address = cluster.scheduler_address
        assert address.startswith("tls://")
        with dask_client(ClusterSettings(kind="address", address=address, tls=ours)) as client:
            assert client.submit(sum, [1, 2]).result() == 3
        for settings, message in (
            (ClusterSettings(kind="address", address=address), r"asks for TLS, and nothing names ca_file"),
            (
                ClusterSettings(kind="address", address=address, tls=other),
                r"no Dask scheduler answers.*of the same authority",
            ),
        ):
            with pytest.raises(SettingsError, match=message), dask_client(settings):
                pass


def test_a_certificate_that_is_not_there_is_named(tmp_path: Path) -> None:
    tls = certificates(tmp_path / "ours").model_copy(update={"key_file": tmp_path / "absent.pem"})
    settings = ClusterSettings(kind="address", address="tls://127.0.0.1:1", tls=tls)
    with (
        pytest.raises(SettingsError, match=r"cluster\.tls\.key_file: there is no file .*absent\.pem"),
        dask_client(settings),
    ):
        pass
