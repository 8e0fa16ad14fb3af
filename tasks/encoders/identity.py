"""What names an encoder, known without loading it: kept beside the state of the files that its weights came from."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from congruence.tasks.encoders.base import Encoder
from congruence.tasks.encoders.loading import asking_encoder, load_encoder
from congruence.tasks.encoders.settings import EncoderSettings
from congruence.tasks.runtime.files import digest_of, load_record, save_record

_FORMAT = 1
_LIBRARIES = ("torch", "torchvision", "open_clip_torch", "timm", "transformers", "pillow", "numpy")


@dataclass(frozen=True)
class EncoderIdentity:
    """What embeddings and protocols are named by: see ``Encoder.id`` and ``Encoder.preprocessing_digest``."""

    id: str
    preprocessing_digest: str


def encoder_identity(settings: EncoderSettings, folder: Path) -> EncoderIdentity:
    """The identity of the encoder of ``settings``, from ``folder`` where it was kept there, else by loading it.

    Kept for every encoder whose weights come from files that are known: until one of them, the settings, a library or
    the code of our encoders changes. Loading an encoder takes seconds, looking at its files none.

    Of tabular features the settings hold the statistics.

    Raises:
        CongruenceError: not kept, and an encoder that cannot be loaded.
    """
    if settings.kind == "identity":
        made = load_encoder(settings)
        return EncoderIdentity(made.id, made.preprocessing_digest)
    found = kept_identity(settings, folder)
    if found is not None:
        return found
    encoder = asking_encoder(settings)  # held by this process, which asks it for more
    keep_identity(settings, encoder, folder)
    return EncoderIdentity(encoder.id, encoder.preprocessing_digest)


def kept_identity(settings: EncoderSettings, folder: Path) -> EncoderIdentity | None:
    """What was kept of this encoder; None where nothing was, it is damaged, or a file of the weights has changed."""
    content = load_record(_path(settings, folder))
    try:
        if content is None or content["files"] != _states(content["files"]):
            return None
    except OSError:  # a file that is gone
        return None
    return EncoderIdentity(**content["encoder"])


def keep_identity(settings: EncoderSettings, encoder: Encoder, folder: Path) -> None:
    """Keep the identity of a loaded encoder, whole or not at all; not of one whose files are unknown.

    One of the user's own may depend on anything.
    """
    if encoder.weight_files is None:
        return
    try:
        files = _states(encoder.weight_files)
        content = {"encoder": asdict(EncoderIdentity(encoder.id, encoder.preprocessing_digest)), "files": files}
        save_record(_path(settings, folder), content)
    except OSError:
        return  # it only saves time


def _path(settings: EncoderSettings, folder: Path) -> Path:
    """Named by everything but the files: the settings that matter, the libraries, and the code of our encoders."""
    described = settings.model_dump_json(exclude={"batch_size", "device"})
    parts = [str(_FORMAT), described, *(f"{name} {_version(name)}" for name in _LIBRARIES), _own_code()]
    return folder / f"{digest_of(parts)}.json"


def _states(files: Iterable[str | Path]) -> dict[str, str]:
    """Size, times and inode of each file, by its path: what tells whether it changed without reading it.

    Raises:
        OSError: a file that is not there.
    """
    states = {}
    for file in files:
        found = os.stat(file)
        states[str(file)] = f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino} {found.st_dev}"
    return states


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


@cache
def _own_code() -> str:
    digest = sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
