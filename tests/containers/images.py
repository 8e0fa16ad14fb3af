"""The images of the exercise: the project's, and those beside it, of Debian's packages where no registry answers."""

import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from engine import OWN, Engine, NotHereError
from packages import pip_settings

ROOT = Path(__file__).parents[2]
PYTHON = "docker.io/library/python:3.11-slim-bookworm"
POSTGRES, S3 = "docker.io/library/postgres:17", "quay.io/minio/minio:RELEASE.2025-09-07T16-13-09Z"
MIRROR, SUITE = "http://deb.debian.org/debian", "bookworm"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
FOUND_ELSEWHERE = (
    "var/cache/apt",
    "var/lib/apt/lists",
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
)
"""Folders of a Debian system that no container reads; made empty."""


@dataclass(frozen=True)
class Bases:
    """The images that the project's is built on and runs beside, and where they are from."""

    python: str
    postgres: str
    s3: str
    from_debian: bool


def bases(engine: Engine) -> Bases:
    """The real images where a registry answers, else those made of Debian's packages, once."""
    if engine("pull", PYTHON, seconds=1800, check=False).returncode == 0:
        for image in (POSTGRES, S3):
            engine("pull", image, seconds=1800)
        return Bases(PYTHON, POSTGRES, S3, from_debian=False)
    made = Bases(f"{OWN}/python:{SUITE}", f"{OWN}/postgres:{SUITE}", f"{OWN}/s3:{SUITE}", from_debian=True)
    if made.python not in engine.images():
        _import_debian(engine, made.python)
    for name, image in (("postgres", made.postgres), ("s3", made.s3)):
        if image not in engine.images():
            context = engine.folder / name
            shutil.copytree(Path(__file__).parent / "images", context)
            shutil.copy(ROOT / "infra" / "healthy.py", context)
            try:
                build(engine, context, context / f"{name}.Containerfile", image, PYTHON_IMAGE=made.python)
            except RuntimeError as error:
                reason = f"no registry of images answers, and the place of {name} cannot be made: {error}"
                raise NotHereError(reason) from error
    return made


def _import_debian(engine: Engine, image: str) -> None:
    """Debian with its Python 3.11, by debootstrap: the place of python:3.11-slim-bookworm."""
    if shutil.which("debootstrap") is None:
        raise NotHereError("no registry of images answers, and debootstrap is not installed")
    root = engine.folder / "debian"
    include = "--include=python3,python3-venv,ca-certificates"
    done = subprocess.run(
        ["debootstrap", "--variant=minbase", include, SUITE, root, MIRROR], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise NotHereError(f"no registry of images answers, and debootstrap failed: {done.stdout[-500:]}")
    for folder in FOUND_ELSEWHERE:
        shutil.rmtree(root / folder)
        (root / folder).mkdir()
    (root / "var/lib/apt/lists/partial").mkdir()
    (root / "usr/bin/python").symlink_to("python3")
    shutil.copy(CERTIFICATES, root / CERTIFICATES.relative_to("/"))  # with the authorities that this machine trusts
    with tarfile.open(engine.folder / "debian.tar", "w") as archive:
        archive.add(root, arcname=".")
    engine("import", engine.folder / "debian.tar", image)
    shutil.rmtree(root)
    (engine.folder / "debian.tar").unlink()


def build(
    engine: Engine,
    context: Path,
    file: Path,
    image: str,
    *,
    output: Path | None = None,
    own_index: bool = True,
    **arguments: str,
) -> None:
    """Build an image, or its files into ``output``, with packages of the user's index or of the default one."""
    words = ["build", "--file", str(file), "--network", "host"]
    words += ["--tag", image] if output is None else ["--output", str(output)]
    for name, value in arguments.items():
        words += ["--build-arg", f"{name}={value}"]
    if engine.name == "podman":
        words += ["--isolation", "chroot", "--format", "docker"]
    with pip_settings(engine.folder, own_index=own_index) as settings:
        engine(*words, "--secret", f"id=pip,src={settings}", context, seconds=3600)


def export(folder: Path, commit: str | None = None) -> Path:
    """The project's files in a folder: those of the working tree, or of a commit."""
    folder.mkdir(parents=True)
    git = ["git", "-C", str(ROOT)]
    if commit is not None:
        archive = subprocess.run([*git, "archive", commit], check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        return folder
    listed = subprocess.run(
        [*git, "ls-files", "-z", "-co", "--exclude-standard"], check=True, capture_output=True
    ).stdout
    present = b"\0".join(name for name in listed.split(b"\0") if name and (ROOT / name.decode()).exists())
    command = ["tar", "-c", "-C", str(ROOT), "--null", "--no-recursion", "-T", "-"]
    archive = subprocess.run(command, input=present, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
    return folder
