"""Are the weights at hand? Decided before a library spends most of a minute on retries without a network."""

import os
import pickle
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub
from huggingface_hub import constants
from safetensors import SafetensorError

from congruence.kernels.errors import CongruenceError

PROBE_SECONDS = 2.0

UNREADABLE = (
    RuntimeError,
    ValueError,
    TypeError,
    EOFError,
    LookupError,
    AttributeError,
    AssertionError,
    StopIteration,
    pickle.UnpicklingError,
    SafetensorError,
)
"""What the libraries raise for a checkpoint of another model, a broken one, or a pickle that would run code."""

_LONGEST = 300


def why_unreadable(error: Exception) -> str:
    """What is wrong with a checkpoint, in one line, by what a library raised (one of ``UNREADABLE``)."""
    said = " ".join(str(error).split())
    if isinstance(error, pickle.UnpicklingError) or "weights_only" in said:  # torch advises to run what is in the file
        return "it holds more than tensors: a pickle that would run code, or a TorchScript archive"
    return f"{type(error).__name__}: {said[:_LONGEST]}"


class WeightsUnavailableError(CongruenceError):
    """An encoder whose weights are neither on this machine nor within reach: says how to get them."""


def hub_files(repository: str, filenames: Sequence[str]) -> tuple[Path, ...] | None:
    """The files of a hub repository in this machine's cache, and the one that says which revision they are of.

    None where the cache holds none of ``filenames``.
    """
    found = [huggingface_hub.try_to_load_from_cache(repository, name) for name in filenames]
    paths = [Path(item) for item in found if isinstance(item, str)]
    if not paths:
        return None
    snapshot = paths[0].parent  # <repository>/snapshots/<revision>
    revision = snapshot.parents[1] / "refs" / "main"
    beside = [item for item in snapshot.iterdir() if item.suffix == ".json"]
    return tuple(sorted({*paths, *beside, *([revision] if revision.is_file() else [])}))


def _answers(url: str) -> bool:
    """Whether the host answers at all; a refusal is an answer, silence and an unknown name are not."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=PROBE_SECONDS):
            return True
    except urllib.error.HTTPError:
        return True
    except urllib.error.URLError as error:
        # A certificate that this interpreter does not know says that somebody is there.
        return isinstance(error.reason, ssl.SSLError)
    except (OSError, ValueError):
        return False


def _reachable(url: str) -> bool:
    answers: list[bool] = []
    # In a thread, since looking up a name obeys no timeout.
    probe = threading.Thread(target=lambda: answers.append(_answers(url)), daemon=True)
    probe.start()
    probe.join(PROBE_SECONDS + 0.5)
    return bool(answers and answers[0])


@contextmanager
def _without_network() -> Iterator[None]:
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


@contextmanager
def weights_from_hub(model: str, repository: str, filenames: Sequence[str]) -> Iterator[None]:
    """Load weights of a hub repository inside this context: from the cache where it holds them, else by download.

    Raises:
        WeightsUnavailableError: at once where neither is possible; and where a download breaks off.
    """
    if hub_files(repository, filenames) is not None:
        # No look-up of a newer revision: the same machine keeps embedding with the same weights.
        with _without_network():
            yield
        return
    if constants.HF_HUB_OFFLINE:
        raise WeightsUnavailableError(_remedy(model, repository, "HF_HUB_OFFLINE forbids a download"))
    if not _reachable(constants.ENDPOINT):
        raise WeightsUnavailableError(_remedy(model, repository, f"{constants.ENDPOINT} does not answer"))
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise WeightsUnavailableError(_remedy(model, repository, f"the download failed: {error}")) from error


def _remedy(model: str, repository: str, cause: str) -> str:
    cache = os.environ.get("HF_HUB_CACHE", constants.HF_HUB_CACHE)
    return (
        f"the weights of {model} are not on this machine and {cause}: run `hf download {repository}` where there is a "
        f"network and copy its cache to {cache}, or set encoder.pretrained to the path of a checkpoint, or use "
        "encoder: {kind: statistics}, which needs no weights (model: compact, which ships with the package, knows "
        "digits alone)"
    )
