"""Makes what the services of compose.yaml and kubernetes/ need to trust each other, once, as files.

python infra/make_secrets.py [FOLDER [HOST OF POSTGRESQL]]

Files that are there are kept, so that a second call changes nothing. The folder is yours alone; the files in it may be
read by whatever user a container runs as, since they are mounted one by one.
"""

from __future__ import annotations

import datetime
import secrets
import sys
from collections.abc import Callable
from pathlib import Path

from cryptography import x509
from cryptography.fernet import Fernet
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

YEARS = 5


def make(folder: Path, host: str = "postgres") -> None:
    """Every secret of compose.yaml in ``folder``; ``host`` is PostgreSQL's."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    word = secrets.token_urlsafe
    password = _kept(folder / "postgres_password", word(24))
    database = f"postgres:{password}@{host}"
    login = _kept(folder / "mlflow_admin_password", word(24))
    prefect = _kept(folder / "prefect_login", f"congruence:{word(24)}")
    access, secret = _kept(folder / "s3_access_key", word(12)), _kept(folder / "s3_secret_key", word(24))
    for name, value in {
        "mlflow_database": f"postgresql://{database}/mlflow",
        "mlflow_auth_settings": _auth_settings(f"postgresql://{database}/mlflow_auth"),
        "mlflow_flask_key": word(32),
        "mlflow_webhook_key": Fernet.generate_key().decode(),
        "prefect_database": f"postgresql+asyncpg://{database}/prefect",
        "webhook_secret": word(24),
        "aws_credentials": f"[default]\naws_access_key_id = {access}\naws_secret_access_key = {secret}\n",
    }.items():
        _kept(folder / name, value)
    _certificates(folder)
    print(
        f"{folder}: MLflow's login is admin and {len(login)} letters in mlflow_admin_password, "
        f"Prefect's is {prefect.partition(':')[0]} and what follows the colon in prefect_login"
    )


def _kept(file: Path, value: str) -> str:
    if not file.exists():
        file.write_text(value)
        file.chmod(0o444)
    return file.read_text()


def _auth_settings(database: str) -> str:
    return (
        "[mlflow]\ndefault_permission = NO_PERMISSIONS\n"
        f"database_uri = {database}\nadmin_username = admin\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
        "auth_cache_ttl_seconds = 60\n"
    )


def _certificates(folder: Path) -> None:
    """An authority of our own, and one certificate that scheduler, workers and clients of Dask show each other."""
    if (folder / "dask_key").exists():
        return
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _name("congruence authority")
    now = datetime.datetime.now(datetime.UTC)

    def certificate(subject: x509.Name, public: ec.EllipticCurvePublicKey, is_authority: bool) -> bytes:
        builder = (
            x509.CertificateBuilder(authority, subject, public, x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=365 * YEARS))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        return builder.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    written: dict[str, Callable[[], bytes]] = {
        "dask_ca": lambda: certificate(authority, authority_key.public_key(), True),
        "dask_certificate": lambda: certificate(_name("congruence dask"), key.public_key(), False),
        "dask_key": lambda: private,  # the authority's own key is kept by nobody: nothing else is ever signed
    }
    for name, content in written.items():
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_bytes(content())
        (folder / name).chmod(0o444)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent / "secrets", *sys.argv[2:3])
