"""The one settings model: an evaluation file in YAML, checked whole before any work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator

from congruence.kernels.errors import InvalidInputError
from congruence.kernels.trust.rule import WithholdingRule
from congruence.tasks.comparison.gate_settings import GateSettings
from congruence.tasks.data.settings import STORED_ROWS, SplitSettings
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.runtime.files import default_home, digest_of, tracking_uri
from congruence.tasks.scores.metrics import METRICS_ASKED, MetricName
from congruence.tasks.settings.parts import (
    ClusterSettings,
    PredictSettings,
    ProtocolSettings,
    SolverSettings,
    Strict,
    TlsSettings,
    checked,
    read_keys,
)
from congruence.tasks.settings.production import StoredPredictions, WatchSettings
from congruence.tasks.settings.sections import EncoderSettings, PredictionSettings, TrackingSettings

_LOCAL_DIR = "local-dir:"


class StoreSettings(Strict):
    """Where embeddings are kept: ``uri`` is a folder or s3:// address; by default ``embeddings`` in the home folder."""

    uri: str | None = None
    dtype: Literal["float32", "float16"] = "float32"
    """Half precision takes half the room, and moves CCE by some 6e-4 of itself."""
    storage_options: Annotated[dict[str, Any], Field(repr=False)] = {}
    """Passed to the fsspec file system: endpoint, credentials. Never logged."""


class ModelEntry(Strict):
    """Versions that are read, or given rows, in a way of their own.

    Attributes:
        uri: which, as a text under ``models:`` says it.
        predictions: how their output is read, in place of the file's.
        model_inputs: the columns that they are given, among those of the split; else its signature chooses.
        name: what a model is called that nobody registered, in place of the name that it was logged under.
    """

    uri: str = Field(min_length=1)
    predictions: PredictionSettings | None = None
    model_inputs: list[str] | None = Field(default=None, min_length=1)
    name: str | None = Field(default=None, min_length=1)


class EvaluationSettings(Strict):
    """An evaluation: which versions, on which splits, embedded and measured how, logged where.

    Relative paths are relative to the evaluation file's folder; the home folder, to the working folder.
    """

    models: list[str] = Field(
        default=[],
        description="models:/name/3, models:/name@alias, or a name for all versions; or {uri, predictions, "
        "model_inputs, name} for versions that are read or given rows in a way of their own",
    )
    model_entries: dict[str, ModelEntry] = Field(
        default={}, description="entries of models that say more than which, by their uri: written by us"
    )
    splits: list[SplitSettings] = Field(min_length=1)
    reference: SplitSettings | None = Field(
        default=None, description="the split that conditional embeddings are estimated on, for protocols such as ecai"
    )
    encoder: EncoderSettings
    protocol: ProtocolSettings = ProtocolSettings()
    predictions: StoredPredictions | None = Field(
        default=None,
        description="family and columns of the models' output, where their metadata do not say; or, with from, "
        "predictions that production stored, in place of models",
    )
    predict: PredictSettings = Field(default=PredictSettings(), description="where and how versions are run")
    metrics: list[MetricName] | None = Field(default=None, description=METRICS_ASKED)
    solver: SolverSettings = SolverSettings()
    store: StoreSettings = StoreSettings()
    cluster: ClusterSettings = ClusterSettings()
    tracking: TrackingSettings = TrackingSettings()
    gate: GateSettings | None = None
    withhold: float | str | dict[str, float | str] | None = Field(
        default=None,
        description="which new inputs `score` withholds: a share such as 5 %, or levels (unusual: 1 %, wrong: 5 %)",
    )
    watch: WatchSettings = WatchSettings()
    home: Annotated[Path, AfterValidator(Path.expanduser)] | None = Field(
        default=None, description="by default $CONGRUENCE_HOME, else .congruence here"
    )
    max_invalid: float = Field(default=0.01, ge=0, le=1, description="share of unusable rows at which a run stops")
    seed: int = Field(default=0, description="of everything that is drawn")

    def entry_of(self, uri: str) -> ModelEntry:
        """Returns what is said of a version: by its own entry, and by the file where that leaves something out."""
        own = self.model_entries.get(uri) or ModelEntry(uri=uri)
        return own.model_copy(update={"predictions": own.predictions or self.predictions})

    @model_validator(mode="before")
    @classmethod
    def _exposure_of_the_predictions(cls, given: Any) -> Any:
        """Predictions that name an exposure name it for every split that names none."""
        named = _field(_field(given, "predictions"), "exposure")
        if named is None or not isinstance(given, dict):
            return given
        return _with_splits(given, lambda split: _with_exposure(split, named))

    @model_validator(mode="before")
    @classmethod
    def _rows_of_stored_predictions(cls, given: Any) -> Any:
        """The split of stored predictions lies where these do, and its target may be that of their labels."""
        stored, splits = _field(given, "predictions"), _field(given, "splits")
        if not isinstance(given, dict) or not isinstance(stored, dict) or not isinstance(splits, list):
            return given
        if stored.get("from") is None or len(splits) != 1 or not isinstance(splits[0], dict):
            return given
        said = {"uri": stored["from"], "key": stored.get("key"), "target": _field(stored.get("targets"), "target")}
        said |= {name: stored[name] for name in ("format", "storage_options") if name in stored}
        named = {name: value for name, value in said.items() if value is not None and name not in splits[0]}
        return {**given, "splits": [splits[0] | named]}

    @model_validator(mode="before")
    @classmethod
    def _entries_of_models(cls, given: Any) -> Any:
        """Entries are kept by their address, and the splits give the columns that any of them asks for."""
        models = _field(given, "models")
        if not isinstance(given, dict) or not isinstance(models, list) or all(isinstance(one, str) for one in models):
            return given
        entries: dict[str, ModelEntry] = {}
        for place, one in enumerate(models):
            try:
                entry = ModelEntry(uri=one) if isinstance(one, str) else ModelEntry.model_validate(one)
            except ValidationError as error:
                problem = error.errors()[0]
                where = ".".join(str(part) for part in ("models", place, *problem["loc"]))
                raise ValueError(f"{where}: {problem['msg']}") from error
            if entry.uri in entries:
                raise ValueError(f"models: {entry.uri} stands there twice; say all of it in one entry")
            entries[entry.uri] = entry
        asked = list(dict.fromkeys(name for entry in entries.values() for name in entry.model_inputs or ()))
        found = {**given, "models": list(entries), "model_entries": entries}
        return _with_splits(found, lambda split: _with_inputs(split, asked)) if asked else found

    @field_validator("withhold")
    @classmethod
    def _withhold_is_a_rule(cls, given: Any) -> Any:
        try:
            WithholdingRule.of(given)
        except InvalidInputError as error:
            raise ValueError(str(error)) from error
        return given

    def _contradictions(self) -> Iterator[str]:
        stored, split = self.predictions, self.splits[0]
        if stored is not None and stored.from_ is not None:
            if len(self.splits) != 1 or split.new_dates_only or self.reference is not None:
                yield (
                    "splits: stored predictions are evaluated on the rows that hold them: name one split, without "
                    "new_dates_only, and no reference; predictions.period says what `watch` looks at"
                )
            if split.key != stored.key:
                yield f"splits: key is {split.key}, and that of predictions {stored.key}; name one"
            if stored.targets is not None and stored.targets.target != split.target:
                yield "splits: target is that of predictions.targets; leave it out"
            if self.model_entries:
                yield "models: of stored predictions these are names of versions, without predictions or inputs"
        yield from self._contradictions_of_splits()
        protocol = self.protocol.protocol()
        if protocol.reference == "validation" and self.reference is None:
            yield (
                f"reference: is missing; protocol '{protocol.name}' estimates on a validation split, so add one, or "
                "use protocol: exact"
            )
        if protocol.reference == "test" and self.reference is not None:
            yield (
                f"reference: protocol '{protocol.name}' estimates on the evaluated split itself; leave reference out, "
                f"or set protocol: {{base: {self.protocol.base}, reference: validation}}"
            )

    def _contradictions_of_splits(self) -> Iterator[str]:
        names = [split.name for split in self.splits if not split.stored]  # else one has the rows of one version
        for name in names:
            if names.count(name) > 1:
                yield f"splits: two splits are named '{name}'; give each a different name"
        for split in self.all_splits:
            if split.target is None:
                yield (
                    f"splits: split '{split.name}' has no target; name the column to predict, for example target: price"
                )
        for split in self.splits if any(split.slices for split in self.splits) else ():
            # Loaded here: a refusal need not wait for what computes the scores.
            from congruence.tasks.scores.metrics.registry import is_taken

            for name in split.slices:
                if is_taken(name) and name not in {"key", "target"} & {split.key, *split.target_columns}:
                    yield (
                        f"splits: split '{split.name}' has a slice column '{name}', which is the name of a column of "
                        "scores; rename it in the data"
                    )
        compares = self.gate is not None and self.gate.baseline is not None
        if compares and all(split.new_dates_only for split in self.splits):
            yield (
                "gate.baseline: versions are compared on the same rows, and a split with new_dates_only is looked "
                "at on dates of each version; add a split without it, or take baseline out"
            )

    @property
    def all_splits(self) -> list[SplitSettings]:
        """Those that are evaluated, and the reference."""
        return [*self.splits, *([self.reference] if self.reference is not None else [])]

    def split_named(self, name: str, option: str) -> SplitSettings:
        """Returns one of ``splits`` by its name.

        Raises:
            SettingsError: there is none of the name that ``option`` of a command gives; says which there are.
        """
        for split in self.splits:
            if split.name == name:
                return split
        raise SettingsError(f"{option}: no split '{name}'; there are {', '.join(split.name for split in self.splits)}")

    @property
    def statistics_split(self) -> SplitSettings:
        """The split that statistics of the inputs are fitted to: the reference, else the first of ``splits``."""
        return self.reference or self.splits[0]

    @property
    def is_of_stored_predictions(self) -> bool:
        """Whether the predictions are read where production stored them, in place of asking models."""
        return self.predictions is not None and self.predictions.from_ is not None

    @property
    def home_folder(self) -> Path:
        """The folder that holds everything a run leaves on disk."""
        return default_home() if self.home is None else self.home.resolve()

    @property
    def plans_folder(self) -> Path:
        """Where the indexes of splits are kept; workers that see the folder share the work on it."""
        return self.home_folder / "plans"

    @property
    def store_uri(self) -> str:
        """Where embeddings, predictions and measurements are kept."""
        return self.store.uri or str(self.home_folder / "embeddings")

    def for_workers(self) -> EvaluationSettings:
        """Returns it with what depends on this process's folder and environment written out: home, MLflow's servers."""
        tracking = self.tracking.model_copy(update={"uri": self.tracking.uri or tracking_uri(self.home_folder)})
        tracking = tracking.model_copy(update={"registry_uri": tracking.registry})
        return self.model_copy(update={"home": self.home_folder, "tracking": tracking})

    @property
    def local_folders(self) -> list[str]:
        """The home folder, and the store's where that is on this machine: what a run has in use."""
        return [str(self.home_folder), *([] if "://" in self.store_uri else [self.store_uri])]


def _field(given: Any, name: str) -> Any:
    return given.get(name) if isinstance(given, dict) else getattr(given, name, None)


def _with_splits(given: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """The content of a file with all of its splits changed."""
    splits, reference = given.get("splits"), given.get("reference")
    found = {"splits": [change(split) for split in splits]} if isinstance(splits, list) else {}
    return {**given, **found} | ({} if reference is None else {"reference": change(reference)})


def _with_inputs(split: Any, asked: list[str]) -> Any:
    """A split that gives models these columns beside its own."""
    own = _field(split, "model_inputs") or _field(split, "input")
    own = [own] if isinstance(own, str) else own
    named = {"model_inputs": list(dict.fromkeys([*own, *asked]))} if isinstance(own, list) else {}
    return split.model_copy(update=named) if isinstance(split, SplitSettings) else {**split, **named}


def _with_exposure(split: Any, exposure: str) -> Any:
    if isinstance(split, SplitSettings):
        return split if split.exposure is not None else split.model_copy(update={"exposure": exposure})
    return {**split, "exposure": split.get("exposure") or exposure} if isinstance(split, dict) else split


def load_settings(path: Path, overrides: dict[str, Any] | None = None) -> EvaluationSettings:
    """The evaluation file at ``path``, with ``overrides`` of its top-level keys.

    Raises:
        SettingsError: unreadable, not YAML, or with wrong keys or values; one line for each of them.
    """
    source = str(path)
    hint = f"; if it holds your data: congruence init {path}"
    content = read_keys(path, source, "an evaluation", "splits: and encoder:", where_it_is_data=hint)
    return checked(EvaluationSettings, _relative_to(path.resolve().parent, content) | (overrides or {}), source)


def _relative_to(folder: Path, content: dict[str, Any]) -> dict[str, Any]:
    """The content with paths below ``folder``; addresses, tags and names of fetched models stay as they are."""

    def at(part: Any, *keys: str) -> Any:
        if not isinstance(part, dict):
            return part
        named = {key: part[key] for key in keys if isinstance(part.get(key), str) and "://" not in part[key]}
        return part | {key: str(folder / Path(path).expanduser()) for key, path in named.items()}

    found, encoder = dict(content), content.get("encoder")
    own = {"reference": ("uri", "image_root"), "predictions": ("from",), "cluster": ("file",)}
    found |= {key: at(content[key], *names) for key, names in own.items() if key in content}
    nested = {("predictions", "targets"): ("uri",), ("cluster", "tls"): tuple(TlsSettings.model_fields)}
    for (key, inside), names in nested.items():
        if isinstance(found.get(key), dict) and inside in found[key]:
            found[key] = found[key] | {inside: at(found[key][inside], *names)}
    if isinstance(content.get("splits"), list):
        found["splits"] = [at(split, "uri", "image_root") for split in content["splits"]]
    if isinstance(encoder, dict):
        weights, model = str(encoder.get("pretrained")), str(encoder.get("model"))
        found["encoder"] = at(encoder, *(["pretrained"] if "/" in weights or "." in weights else []))
        if model.startswith(_LOCAL_DIR):
            inside = at({"model": model.removeprefix(_LOCAL_DIR)}, "model")["model"]
            found["encoder"] = found["encoder"] | {"model": f"{_LOCAL_DIR}{inside}"}
    return found


def settings_digest(settings: EvaluationSettings, split: SplitSettings) -> str:
    """16 hexadecimal digits for how models are asked and read, how exactly systems are solved, and what is drawn.

    ``split`` is the evaluated one of the file's splits.
    """
    reference = settings.reference
    solver: dict[str, Any] = {"exact": True, "tolerance": 3e-7}  # as runs that are already logged have it
    if settings.solver.kind == "cholesky":
        solver["kind"] = "cholesky"
    elif settings.solver.landmarks is not None:
        solver["landmarks"] = settings.solver.landmarks
    return _digest(
        {
            "contract": contract_digest(settings.predictions, split),
            "reference_contract": None if reference is None else contract_digest(settings.predictions, reference),
            "solver": solver,
            "seed": settings.seed,
            "embeddings": settings.store.dtype,
        }
    )


def entry_digest(settings: EvaluationSettings, split: SplitSettings, uri: str) -> str:
    """16 hexadecimal digits for how one version is read and asked in a way of its own; "" for as all are.

    Of one whose predictions are stored in ``split`` they are those of the predictions, after ``STORED_ROWS``.
    """
    if (stored := split.stored.get(uri)) is not None:
        return STORED_ROWS + _digest({"stored": stored.digest})
    entry = settings.model_entries.get(uri)
    if entry is None or (entry.predictions is None and entry.model_inputs is None):
        return ""
    said = None if entry.predictions is None else entry.predictions.digested()
    return _digest({"predictions": said, "model_inputs": entry.model_inputs})


def contract_digest(predictions: PredictionSettings | None, split: SplitSettings) -> str:
    """16 hexadecimal digits for what a model is given of ``split`` and how its output is read.

    Without ``predictions`` the output is read as the version's own metadata say, which never change.
    """
    said = None if predictions is None else predictions.digested()
    return _digest({"predictions": said, "model_inputs": split.model_input_columns})


def _digest(parts: dict[str, Any]) -> str:
    return digest_of(parts)[:16]
