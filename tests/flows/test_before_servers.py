"""What is wrong with files, data and encoders is said once, before a Prefect server or a cluster is started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from congruence.flows.cli.options import Errors
from congruence.flows.operations.validate import about_targets
from congruence.flows.prefect import session
from congruence.kernels import Normal, Poisson
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


def test_what_a_version_says_of_some_rows_is_set_beside_their_targets() -> None:
    """A mean 1.9 times too large, and a density between counts, were "1 to do"."""
    y = np.random.default_rng(0).poisson(0.5, 400).astype(float)
    assert about_targets(Poisson(np.full(400, np.mean(y))), y) == ["mean prediction over mean target: 1 on 400 rows"]
    (forgotten,) = about_targets(Poisson(np.full(400, 1.9 * np.mean(y))), y)
    assert forgotten.startswith("mean prediction over mean target: 1.9 on 400 rows: is an exposure missing")
    counted, _ = about_targets(Normal(np.full(400, 0.5), np.ones(400)), y)
    assert counted.startswith("the targets are counts, and Normal has a density between them")
    assert about_targets(Normal(y - 5.0, np.ones(400)), y - 5.3) == []
