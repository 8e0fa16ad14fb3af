"""Where a stack keeps its things, and by which addresses and passwords its parts know each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from congruence.tasks.settings.home import VARIABLE
from congruence.tasks.stack.certificates import AUTHORITY, CERTIFICATE, KEY, make_certificates
from congruence.tasks.stack.passwords import passwords, write_private
from congruence.tasks.stack.ports import chosen_ports

BUCKET = "congruence"
TEMPORARY = "work/temporary"
POOL = "congruence"
USUAL_PORTS = {
    "postgresql": 5432,
    "s3": 9000,
    "mlflow": 5000,
    "prefect": 4200,
    "scheduler": 8786,
    "dashboard": 8787,
    "worker-1": 8788,
    "worker-2": 8789,
    "runs": 8080,
    "receiver": 4280,
}
_QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
_REGION = "us-east-1"


@dataclass(frozen=True)
class Place:
    """A stack's folder, ports and passwords.

    Attributes:
        home: the home folder, which the evaluations on the stack share.
        ports: of each part on loopback.
        words: passwords and keys by name.
        s3: address of an S3-protocol server of the user's; None where the stack has its own.
        s3_login: access key and secret key for ``s3``.
    """

    home: Path
    ports: Mapping[str, int]
    words: Mapping[str, str] = field(repr=False)
    s3: str | None = None
    s3_login: tuple[str, str] | None = field(default=None, repr=False)

    @property
    def folder(self) -> Path:
        """What the stack keeps, and its logs."""
        return stack_folder(self.home)

    def http(self, name: str) -> str:
        """The address of a part that speaks HTTP."""
        return f"http://127.0.0.1:{self.ports[name]}"

    @property
    def scheduler(self) -> str:
        """Dask's address."""
        return f"tls://127.0.0.1:{self.ports['scheduler']}"

    @property
    def s3_endpoint(self) -> str:
        """The address of the S3-protocol server."""
        return self.s3 or self.http("s3")

    @property
    def certificates(self) -> dict[str, str]:
        """The settings ``cluster.tls`` of an evaluation file."""
        files = {"ca_file": AUTHORITY, "cert_file": CERTIFICATE, "key_file": KEY}
        return {key: str(self.folder / name) for key, name in files.items()}

    def s3_environment(self) -> dict[str, str]:
        """What a client of the S3-protocol server reads from its environment."""
        access, secret = self.s3_login or (self.words["s3_access_key"], self.words["s3_secret_key"])
        keys = {"AWS_ACCESS_KEY_ID": access, "AWS_SECRET_ACCESS_KEY": secret}
        return keys | {"AWS_ENDPOINT_URL": self.s3_endpoint, "AWS_DEFAULT_REGION": _REGION}

    def clients_environment(self) -> dict[str, str]:
        """What evaluations on the stack, its workers and its user's shell read from their environment."""
        return self.s3_environment() | {
            "MLFLOW_TRACKING_URI": self.http("mlflow"),
            "PREFECT_API_URL": f"{self.http('prefect')}/api",
            "PREFECT_API_AUTH_STRING": f"congruence:{self.words['prefect']}",
            VARIABLE: str(self.home),
        }

    def quiet_environment(self) -> dict[str, str]:
        """What keeps servers from telling others about themselves."""
        return dict(_QUIET)


def stack_folder(home: Path) -> Path:
    """Where the stack of a home folder keeps everything."""
    return home / "stack"


def open_place(home: Path, s3: str | None = None, s3_login: tuple[str, str] | None = None) -> Place:
    """The stack's place in a home folder, made with its passwords, ports and certificates if need be.

    Raises:
        StackError: a file of it is not as it was written, or a port is taken by another program.
    """
    folder = stack_folder(home)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o711)  # PostgreSQL may have to pass as another user; everything inside is for the owner alone
    for inner in ("logs", "work", TEMPORARY):
        (folder / inner).mkdir(exist_ok=True)
        (folder / inner).chmod(0o700)
    words = passwords(folder / "passwords.json")
    make_certificates(folder)
    return Place(home, chosen_ports(folder / "ports.json", USUAL_PORTS), words, s3, s3_login)


def write_environment(place: Place) -> Path:
    """The file that a shell reads with ``.``, for its owner alone."""
    file = place.folder / "environment"
    write_private(file, "".join(f"export {name}='{value}'\n" for name, value in place.clients_environment().items()))
    return file


def read_environment(home: Path) -> dict[str, str]:
    """What the file of ``write_environment`` holds."""
    lines = (stack_folder(home) / "environment").read_text().splitlines()
    pairs = (line.removeprefix("export ").partition("=") for line in lines)
    return {name: value.strip("'") for name, _, value in pairs}
