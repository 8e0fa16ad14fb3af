"""What is wrong with files, data and encoders is said once, before a Prefect server or a cluster is started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from congruence.flows.cli.options import Errors
from congruence.flows.prefect import session
from congruence.tasks.settings.evaluation import EvaluationSettings

Content = Callable[..., dict[str, Any]]
Register = Callable[..., str]


WRONG_ENCODERS: list[tuple[dict[str, Any], str]] = [
    ({"kind": "custom", "path": "nobodys:Encoder"}, "put its folder on PYTHONPATH, of every worker too"),
    ({"kind": "open_clip", "model": "ViT-B-23"}, "is unknown to open_clip"),
]
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"target": "targt"}, "there is no column 'targt' (target); did you mean 'target'? the columns are:"),
    ({"slices": ["weather"]}, "there is no column 'weather' (slices); the columns are:"),
    ({"target": "key"}, "column 'key' (target) holds"),
    ({"uri": "nowhere.parquet"}, "nowhere.parquet"),
]


def test_a_wrong_column_or_encoder_is_said_once_and_starts_nothing(
    content: Content,
    home: Path,
    register_law: Register,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    uri = register_law()
    monkeypatch.setattr(session, "session", lambda: pytest.fail("a server was started"))
    for change, said in [*WRONG, *WRONG_ENCODERS]:
        changed = content(models=[uri], home=str(home))
        if (change, said) in WRONG:
            changed["splits"][0] |= change
        else:
            changed["encoder"] = change
        settings = EvaluationSettings.model_validate(changed)
        capsys.readouterr()
        with pytest.raises(SystemExit), Errors(debug=False):
            session.run_evaluation(settings)
        shown = capsys.readouterr()
        assert (shown.out + shown.err).count(said) == 1
        assert shown.err.startswith("Error: ")
