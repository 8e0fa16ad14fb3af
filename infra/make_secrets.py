"""Makes what the services of compose.yaml and kubernetes/ need to trust each other, once, as files.

python infra/make_secrets.py [FOLDER [HOST OF POSTGRESQL]]

It needs Python 3.11 and the package cryptography, not congruence's own. Files that are there are kept, so that a second
call changes nothing. The folder is yours alone; the files in it may be read by whatever user a container runs as, since
they are mounted one by one.
"""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

try:
    from cryptography.fernet import Fernet
except ImportError:
    sys.exit("make_secrets.py needs the package cryptography: pip install cryptography")

sys.path.insert(0, str(Path(__file__).resolve().parent))

from certificates import make_certificates


def make(folder: Path, host: str = "postgres") -> None:
    """Every secret of compose.yaml in ``folder``; ``host`` is PostgreSQL's."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
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
    make_certificates(folder, mode=0o444)
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


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent / "secrets", *sys.argv[2:3])
