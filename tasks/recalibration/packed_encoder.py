"""What a model folder must hold of an encoder so that the model embeds without the folder it was fitted from."""

from __future__ import annotations

import shutil
from pathlib import Path

from congruence.tasks.encoders.settings import EncoderSettings

LOCAL = "local-dir:"
HERE = "{folder}"


def pack_encoder(settings: EncoderSettings, folder: Path) -> tuple[EncoderSettings, str]:
    """Copy weights that are files of this machine into ``folder``: the settings that find them there, and their key.

    The mean and scale of features are among the settings; the compact encoder ships with the package; weights that are
    named on a hub, and encoders of the user's own, are named again and must be within reach where the model is loaded.

    Returns:
        The settings, in which ``{folder}`` stands for the folder, and the key that holds it, "" for none.
    """
    anywhere = settings.model_copy(update={"device": "auto"})
    model, pretrained = settings.model or "", settings.pretrained or ""
    if model.startswith(LOCAL):
        source = Path(model.removeprefix(LOCAL))
        shutil.copytree(source, folder / source.name)
        return anywhere.model_copy(update={"model": f"{LOCAL}{HERE}/{source.name}"}), "model"
    if pretrained and Path(pretrained).is_file():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy2(pretrained, folder / Path(pretrained).name)
        return anywhere.model_copy(update={"pretrained": f"{HERE}/{Path(pretrained).name}"}), "pretrained"
    return anywhere, ""
