"""Under what an evaluation was made: what two must share to be compared, and what an evaluation file asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from congruence.tasks.mlflow.identity import PREFIX

_WORDS = {
    "split_digest": "content of the split",
    "protocol_digest": "protocol",
    "settings_digest": "predictions, model_inputs, solver, seed and store.dtype",
}


@dataclass(frozen=True)
class Conditions:
    """The digests that an evaluation must have; None where any will do.

    Attributes:
        split_digest: of the split's content.
        protocol_digest: of the protocol with its encoder and reference split.
        settings_digest: of the settings that change a number beyond these (``tasks.settings_digest``).
    """

    split_digest: str | None = None
    protocol_digest: str | None = None
    settings_digest: str | None = None

    @classmethod
    def of(cls, tags: Mapping[str, str]) -> Conditions:
        """Those of a logged evaluation, from its run's tags."""
        return cls(**{name: tags.get(PREFIX + name, "") for name in _WORDS})

    def admit(self, tags: Mapping[str, str]) -> bool:
        """Whether a logged evaluation was made under these, by its run's tags."""
        return not self.unmet(tags)

    def unmet(self, tags: Mapping[str, str]) -> list[str]:
        """In what a logged evaluation differs, in words."""
        return [
            f"{words} {self._shown(tags.get(PREFIX + name, ''))} instead of {self._shown(wanted)}"
            for name, words in _WORDS.items()
            if (wanted := getattr(self, name)) is not None and tags.get(PREFIX + name, "") != wanted
        ]

    @staticmethod
    def _shown(digest: str) -> str:
        return digest[:16] or "unknown"


ANY = Conditions()
"""Under whatever conditions."""
