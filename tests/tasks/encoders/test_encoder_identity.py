"""The name of an encoder is known without loading it, as long as none of its files changed."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from congruence.tasks.compact_clip import WEIGHTS
from congruence.tasks.encoders import loading
from congruence.tasks.encoders.loading import EncoderIdentity, encoder_identity, load_encoder
from congruence.tasks.settings.sections import EncoderSettings


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "clip"
    shutil.copytree(WEIGHTS, folder)
    return folder


class NotKeptError(Exception):
    """An encoder is loaded to be asked."""


def kept_identity(settings: EncoderSettings, folder: Path) -> EncoderIdentity | None:
    """What is known without loading the encoder."""

    def refuse(settings: EncoderSettings) -> None:
        raise NotKeptError

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loading, "asking_encoder", refuse)
        try:
            return encoder_identity(settings, folder)
        except NotKeptError:
            return None


def test_a_kept_identity_is_that_of_the_encoder_until_a_file_changes(model: Path, tmp_path: Path) -> None:
    settings = EncoderSettings(model=f"local-dir:{model}")
    encoder = load_encoder(settings)
    assert kept_identity(settings, tmp_path) is None
    expected = EncoderIdentity(encoder.id, encoder.preprocessing_digest)
    assert encoder_identity(settings, tmp_path) == expected
    assert kept_identity(settings, tmp_path) == expected
    assert kept_identity(EncoderSettings(model=f"local-dir:{model}", batch_size=7), tmp_path) == expected
    assert kept_identity(EncoderSettings(model=f"local-dir:{model}", max_pixels=1000), tmp_path) is None
    assert kept_identity(EncoderSettings(model=f"local-dir:{model}", precision="bf16"), tmp_path) is None

    weights = model / "open_clip_model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert kept_identity(settings, tmp_path) is None
    loading._warm.cache_clear()
    assert encoder_identity(settings, tmp_path) != expected, "other weights, another encoder"


def test_a_known_encoder_is_named_without_torch(tmp_path: Path) -> None:
    settings = EncoderSettings(model="compact")
    encoder_identity(settings, tmp_path)
    code = f"""
import sys
from pathlib import Path
from congruence.tasks.settings.sections import EncoderSettings
from congruence.tasks.encoders.loading import encoder_identity
print(encoder_identity(EncoderSettings(model="compact"), Path({str(tmp_path)!r})).id, "torch" in sys.modules)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert said == [load_encoder(settings).id, "False"]


@pytest.mark.parametrize("damage", ["", "{}", "[1]", "not json", '{"checksum": "0", "encoder": {}, "files": {}}'])
def test_a_damaged_file_is_no_identity(tmp_path: Path, damage: str) -> None:
    settings = EncoderSettings(model="compact")
    encoder_identity(settings, tmp_path)
    (file,) = tmp_path.glob("*.json")
    good = json.loads(file.read_text())
    file.write_text(damage)
    assert kept_identity(settings, tmp_path) is None
    file.write_text(json.dumps(good | {"encoder": {"id": "another", "preprocessing_digest": "one"}}))
    assert kept_identity(settings, tmp_path) is None


def test_features_and_encoders_of_the_user_are_not_kept(tmp_path: Path) -> None:
    settings = EncoderSettings(kind="identity", mean=(0.0, 1.0), scale=(1.0, 2.0))
    made = load_encoder(settings)
    assert encoder_identity(settings, tmp_path) == EncoderIdentity(made.id, made.preprocessing_digest)
    assert not list(tmp_path.iterdir())
