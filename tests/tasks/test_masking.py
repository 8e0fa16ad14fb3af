"""No password or token reaches a log, whatever it is wrapped in."""

from __future__ import annotations

import pytest

from congruence.tasks.masking import mask_secrets, mask_text


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("postgresql://ann:hunter2@db:5432/mlflow", "postgresql://***@db:5432/mlflow"),
        ("postgresql+psycopg2://ann:hun%40ter2@db/mlflow", "postgresql+psycopg2://***@db/mlflow"),
        ("https://token@host/x and s3://key:secret@bucket", "https://***@host/x and s3://***@bucket"),
        ("https://h/x?a=1&token=abc&b=2", "https://h/x?a=1&token=***&b=2"),
        (
            "https://h/x?X-Amz-Signature=0af&X-Amz-Credential=AK/1",
            "https://h/x?X-Amz-Signature=***&X-Amz-Credential=***",
        ),
        ("host=db password=hunter2 user=ann", "host=db password=*** user=ann"),
        ("models:/digit-angle@champion", "models:/digit-angle@champion"),
        ("s3://bucket/a@b/file.parquet", "s3://bucket/a@b/file.parquet"),
    ],
)
def test_addresses(text, masked):
    assert mask_text(text) == masked


def test_everything_inside_settings():
    settings = {
        "tracking": {"uri": "http://ann:hunter2@mlflow:5000"},
        "storage_options": {"key": "AKIA", "secret": "hunter2", "endpoint": ("http://u:hunter2@s3",)},
        "MLFLOW_TRACKING_PASSWORD": "hunter2",
        "seed": 7,
        "aws_secret_access_key": "hunter2",
        "landmarks": None,
    }
    masked = mask_secrets(settings)
    assert "hunter2" not in str(masked)
    assert masked["seed"] == 7
    assert masked["tracking"] == {"uri": "http://***@mlflow:5000"}
