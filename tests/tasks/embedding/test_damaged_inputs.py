"""Five hundred damaged inputs: each keeps its place and gets its reason, and nothing outside the root is ever read."""

import os
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from embed_process import PixelEncoder, embed_all, open_store
from encoder_inputs import encoder_inputs
from PIL import Image
from saved_pictures import noise, png_header, saved
from source_forms import add

from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import open_split
from congruence.tasks.encoders.base import InvalidRow
from congruence.tasks.runtime.errors import SplitError

SECRET = b"the content of a file outside of the root"


PIXELS = Image.fromarray(noise(24, 24, 3))
JPEG, PNG = saved(PIXELS, "JPEG", quality=90), saved(PIXELS)
INVALID: dict[str, Callable[[random.Random], bytes]] = {
    "truncated": lambda numbers: JPEG[: numbers.randrange(1, len(JPEG) - 30)],
    "truncated png": lambda numbers: PNG[: numbers.randrange(1, len(PNG) - 30)],
    "empty": lambda _: b"",
    "text": lambda numbers: b"This is not a picture. " * numbers.randrange(1, 9),
    "huge": lambda _: png_header(30_000, 30_000),  # 2.7 GB if a decoder believes it
    "noise": lambda numbers: numbers.randbytes(numbers.randrange(1, 400)),
    "false header": lambda numbers: JPEG[:2] + numbers.randbytes(60),
}
FRAMES = [Image.new("RGB", (24, 24), (shade, 0, 0)) for shade in (10, 200)]
READABLE = {
    "cmyk": saved(PIXELS.convert("CMYK"), "JPEG"),
    "16-bit": saved(np.arange(576, dtype=np.uint16).reshape(24, 24) * 100),
    "animated": saved(FRAMES[0], "GIF", save_all=True, append_images=FRAMES[1:]),
    "palette": saved(PIXELS.convert("P")),
    "grey": saved(PIXELS.convert("L"), "JPEG"),
    "png named jpg": PNG,
}


@pytest.mark.parametrize("kept_in", ["parquet", "folder", "tar"])
def test_every_damaged_image_is_accounted_for(kept_in: str, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    numbers = random.Random(seed)
    kinds = [*(kind for kind in INVALID for _ in range(20)), *(kind for kind in READABLE for _ in range(5))]
    numbers.shuffle(kinds)
    images = [READABLE[kind] if kind in READABLE else INVALID[kind](numbers) for kind in kinds]
    split = open_split(_write(kept_in, tmp_path, images))
    store = open_store(str(tmp_path / "store"), split)
    embed_all(split, store, PixelEncoder())
    reasons = store.reasons()
    assert split.rows == len(kinds)
    assert {row for row, kind in enumerate(kinds) if kind in INVALID} == set(reasons)
    assert all(reasons.values())
    for row, kind in enumerate(kinds):
        if kind == "empty":
            assert reasons[row] == "the image is empty (0 bytes)"
        if kind == "huge":
            assert "too large" in reasons[row]


def _write(kept_in: str, folder: Path, images: list[bytes]) -> SplitSettings:
    rows = len(images)
    if kept_in == "parquet":
        pq.write_table(pa.table({"image": images, "y": np.arange(float(rows))}), folder / "split.parquet")
        return SplitSettings(uri=str(folder / "split.parquet"), input="image", target="y", shard_rows=64)
    if kept_in == "folder":
        for row, image in enumerate(images):
            (folder / f"{row}.jpg").write_bytes(image)
        frame = pd.DataFrame({"image": [f"{row}.jpg" for row in range(rows)], "y": range(rows)})
        frame.to_csv(folder / "manifest.csv", index=False)
        return SplitSettings(uri=str(folder / "manifest.csv"), input="image", target="y", shard_rows=64)
    with tarfile.open(folder / "split.tar", "w") as archive:
        for row, image in enumerate(images):
            add(archive, f"{row:04d}.jpg", image)
            add(archive, f"{row:04d}.cls", str(row).encode())
    return SplitSettings(uri=str(folder / "split.tar"), input="jpg", target="cls", shard_rows=64)


ESCAPES = [
    "../secret.jpg",
    "images/../../secret.jpg",
    "..",
    "images/../../split/../secret.jpg",
    "{outside}/secret.jpg",
    "~/secret.jpg",
    "~root/secret.jpg",
    "file://{outside}/secret.jpg",
    "http://127.0.0.1/secret.jpg",
    "s3://bucket/secret.jpg",
    "\\\\server\\secret.jpg",
    "..\\secret.jpg",
    "C:\\secret.jpg",
    "link.jpg",
    "linked/secret.jpg",
    "chain.jpg",
    "loop.jpg",
    "missing.jpg",
    "image.jpg/inside",
    "folder.jpg",
    "pipe.jpg",
    "nul\x00.jpg",
    "/dev/zero",
    "/etc/hostname",
    "zero.jpg",
    " ",
    "x" * 300,
    "x/" * 3000 + "y.jpg",
    "unreadable\ud800.jpg".encode("utf-8", "replace").decode(),
]


def test_no_path_in_a_manifest_leads_out_of_the_root(tmp_path: Path) -> None:
    outside, root = tmp_path, tmp_path / "split"
    (root / "folder.jpg").mkdir(parents=True)
    (outside / "secret.jpg").write_bytes(SECRET)
    (root / "image.jpg").write_bytes(b"inside")
    (root / "inner.jpg").symlink_to(root / "image.jpg")
    (root / "link.jpg").symlink_to(outside / "secret.jpg")
    (root / "linked").symlink_to(outside)
    (root / "chain.jpg").symlink_to(root / "link.jpg")
    (root / "loop.jpg").symlink_to(root / "loop.jpg")
    (root / "zero.jpg").symlink_to("/dev/zero")
    os.mkfifo(root / "pipe.jpg")
    names = [name.format(outside=outside) for name in ESCAPES] * 4 + ["image.jpg", "inner.jpg"]
    pq.write_table(pa.table({"image": names, "y": np.arange(float(len(names)))}), root / "manifest.parquet")
    split = open_split(SplitSettings(uri=str(root / "manifest.parquet"), input="image", target="y", shard_rows=50))
    read = [value for shard in split.shards for value in encoder_inputs(split, shard)]
    assert len(read) == len(names)
    assert read[-2:] == [b"inside", b"inside"]
    reasons = [value.reason if isinstance(value, InvalidRow) else None for value in read[:-2]]
    assert all(reasons), [name for name, reason in zip(names, reasons, strict=False) if not reason]
    assert "leaves the image root" in (reasons[0] or "")
    assert "is absolute" in (reasons[4] or "")
    assert "is a link that leaves the image root" in (reasons[13] or "")
    assert "does not exist" in (reasons[17] or "")
    assert "is not a regular file" in (reasons[20] or "")


def test_a_file_beyond_the_limit_is_never_loaded(tmp_path: Path) -> None:
    with (tmp_path / "large.jpg").open("wb") as stream:
        stream.truncate(10 * 2**30)
    (tmp_path / "manifest.csv").write_text("image,y\nlarge.jpg,1\n")
    split = open_split(SplitSettings(uri=str(tmp_path / "manifest.csv"), input="image", target="y"))
    (value,) = encoder_inputs(split, split.shards[0])
    assert isinstance(value, InvalidRow)
    assert value.reason == "file 'large.jpg' has 10737418240 bytes, more than max_input_bytes = 268435456"


def test_members_of_a_tar_that_point_elsewhere_are_invalid_rows(tmp_path: Path) -> None:
    (tmp_path / "secret.jpg").write_bytes(SECRET)
    with tarfile.open(tmp_path / "split.tar", "w") as archive:
        for row, (name, changes) in enumerate(
            [
                ("good", {}),
                ("../../climbing", {}),
                ("/absolute", {}),
                ("symbolic", {"type": tarfile.SYMTYPE, "linkname": "../secret.jpg"}),
                ("hard", {"type": tarfile.LNKTYPE, "linkname": "good.jpg"}),
                ("device", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 5}),
                ("pipe", {"type": tarfile.FIFOTYPE}),
            ]
        ):
            add(archive, f"{name}.jpg", b"" if changes else b"bytes", **changes)
            add(archive, f"{name}.cls", str(row).encode())
        add(archive, "imageless.cls", b"7")
    split = open_split(SplitSettings(uri=str(tmp_path / "split.tar"), input="jpg", target="cls"))
    good, *others = encoder_inputs(split, split.shards[0])
    assert good == b"bytes"
    assert [value.reason if isinstance(value, InvalidRow) else value for value in others] == [
        "member '../../climbing.jpg' has a name that leaves the archive",
        "member '/absolute.jpg' has a name that leaves the archive",
        "member 'symbolic.jpg' is a link to '../secret.jpg'; links are not followed",
        "member 'hard.jpg' is a link to 'good.jpg'; links are not followed",
        "member 'device.jpg' is not a regular file",
        "member 'pipe.jpg' is not a regular file",
        "column 'jpg' holds no image",
    ]


def test_duplicate_sample_names_in_tars_are_refused_with_both_places(tmp_path: Path) -> None:
    for shard in ("0.tar", "1.tar"):
        with tarfile.open(tmp_path / shard, "w") as archive:
            add(archive, "a.jpg", b"x")
            add(archive, "a.cls", b"1")
    with pytest.raises(SplitError, match=r"holds 'a' twice: .*0\.tar, row 0 and .*1\.tar, row 0"):
        open_split(SplitSettings(uri=str(tmp_path), input="jpg", target="cls"))
