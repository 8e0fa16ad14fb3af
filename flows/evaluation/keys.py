"""What an evaluation file asks for, as digests: under these its evaluations are logged, found, compared and gated."""

from __future__ import annotations

from dataclasses import replace

from congruence.flows.evaluation.splits import open_planned, with_fitted_encoder
from congruence.kernels.protocol.protocol import EvaluationProtocol
from congruence.tasks.data.split import Split
from congruence.tasks.encoders.base import Encoder
from congruence.tasks.encoders.identity import EncoderIdentity, encoder_identity
from congruence.tasks.mlflow.finished import Conditions
from congruence.tasks.mlflow.identity import EvaluationIdentity
from congruence.tasks.models.registry import ModelVersion
from congruence.tasks.scores.metrics.registry import requested_metrics
from congruence.tasks.settings.digest import settings_digest
from congruence.tasks.settings.evaluation import EvaluationSettings


def encoder_protocol(settings: EvaluationSettings, encoder: Encoder | EncoderIdentity) -> EvaluationProtocol:
    """The settings' protocol with its encoder and reference split, without which its numbers do not compare."""
    protocol = replace(settings.protocol.protocol(), encoder=f"{encoder.id} {encoder.preprocessing_digest}")
    if settings.reference is None:
        return protocol
    return replace(protocol, reference_split=open_planned(settings.reference, settings).digest)


def evaluation_identity(
    settings: EvaluationSettings, split: Split, protocol: EvaluationProtocol, version: ModelVersion
) -> EvaluationIdentity:
    """What makes an evaluation of ``version`` by these settings the same as one that is logged already."""
    return EvaluationIdentity(
        model=version,
        split_name=split.name,
        split_digest=split.digest,
        protocol_digest=protocol.digest,
        metric_list=requested_metrics(settings.metrics),
        settings_digest=settings_digest(settings, split.settings),
        target=split.settings.target_name,
        period=split.period,
    )


def file_conditions(settings: EvaluationSettings, *, protocol_digest: str | None = None) -> dict[str, Conditions]:
    """By split: the digests under which these settings evaluate, whatever else may have been logged on it.

    Args:
        settings: the evaluation file's.
        protocol_digest: to be taken in place of the file's own, for which the encoder must be known.

    Raises:
        CongruenceError: a split or an encoder that cannot be opened.
    """
    settings = with_fitted_encoder(settings)
    if protocol_digest is None:
        encoder = encoder_identity(settings.encoder, settings.home_folder / "encoders")
        protocol_digest = encoder_protocol(settings, encoder).digest
    return {
        split.name: Conditions(open_planned(split, settings).digest, protocol_digest, settings_digest(settings, split))
        for split in settings.splits
    }
