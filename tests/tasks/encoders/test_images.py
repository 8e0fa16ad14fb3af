"""Bytes that nobody vouches for become a picture or an InvalidRow with its reason, and nothing else."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from saved_pictures import png_header, saved

from congruence.tasks.encoders.base import InvalidRow
from congruence.tasks.encoders.images import decode_image

LIMIT = 1_000_000


def gradient(mode: str = "RGB") -> Image.Image:
    ramp = np.linspace(0, 255, 32 * 24).reshape(24, 32).astype(np.uint8)
    return Image.fromarray(ramp).convert(mode)


def reason(raw: object) -> str:
    with pytest.raises(InvalidRow) as caught:
        decode_image(raw, LIMIT)
    return caught.value.reason


@pytest.mark.parametrize(
    ("format", "mode", "shown"),
    [
        ("JPEG", "RGB", "RGB"),
        ("JPEG", "L", "L"),
        ("JPEG", "CMYK", "RGB"),
        ("PNG", "RGBA", "RGB"),
        ("PNG", "LA", "RGB"),
        ("PNG", "P", "RGB"),
        ("WEBP", "RGB", "RGB"),
        ("TIFF", "CMYK", "RGB"),
    ],
)
def test_common_formats_are_colours_or_grey_as_a_viewer_shows_them(format: str, mode: str, shown: str) -> None:
    decoded = decode_image(saved(gradient(mode), format), LIMIT)
    assert (decoded.mode, decoded.size) == (shown, (32, 24))
    apart = np.asarray(decoded.convert("L"), int) - np.asarray(gradient("L"), int)
    assert np.abs(apart).mean() < 3.0


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_stands_upright_as_exif_says(format: str, orientation: int) -> None:
    """The pixels are stored turned, so that a viewer that turns them back shows the gradient."""
    turn = Image.Transpose
    turned = {2: turn.FLIP_LEFT_RIGHT, 3: turn.ROTATE_180, 4: turn.FLIP_TOP_BOTTOM, 5: turn.TRANSPOSE}
    turned |= {6: turn.ROTATE_90, 7: turn.TRANSVERSE, 8: turn.ROTATE_270}
    stored = gradient() if orientation == 1 else gradient().transpose(turned[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    decoded = decode_image(saved(stored, format, exif=exif), LIMIT)
    assert decoded.size == (32, 24)
    assert np.abs(np.asarray(decoded.convert("L"), int) - np.asarray(gradient("L"), int)).mean() < 3.0


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_white(mode: str) -> None:
    hidden = Image.new("RGBA", (8, 8), (200, 0, 0, 0))
    hidden.paste((0, 0, 200, 255), (0, 0, 4, 8))
    decoded = decode_image(saved(hidden.convert(mode) if mode != "P" else hidden.quantize(4), "PNG"), LIMIT)
    assert decoded.getpixel((6, 4)) == (255, 255, 255)
    assert decoded.getpixel((1, 4)) != (255, 255, 255)


def test_damaged_exif_data_are_no_reason_to_leave_a_picture_out() -> None:
    data = saved(gradient(), "JPEG", exif=b"Exif\x00\x00II*\x00\xff\xff\xff\x00")
    assert decode_image(data, LIMIT).size == (32, 24)


def test_sixteen_bits_keep_their_brightness() -> None:
    values = np.linspace(0, 65535, 32 * 24).reshape(24, 32).astype(np.uint16)
    decoded = decode_image(saved(values), LIMIT)
    np.testing.assert_array_equal(np.asarray(decoded), values >> 8)


def test_a_bitmap_becomes_grey() -> None:
    assert decode_image(saved(gradient("1"), "PNG"), LIMIT).mode == "L"


def test_an_animation_shows_its_first_frame() -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "green", "blue")]
    animated = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decode_image(animated, LIMIT).getpixel((0, 0)) == (255, 0, 0)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "0 bytes"),
        (b"not an image at all", "not an image in a known format"),
        (None, "NoneType"),
        ("a.jpg", "str"),
        (saved(gradient(), "JPEG")[:-200], "damaged"),
        (saved(gradient(), "PNG")[:-40], "damaged"),
        (png_header(30_000, 30_000), "too large"),
        (png_header(1_200, 1_000), "more than max_pixels"),
        (saved(Image.new("RGB", (1, 500)), "PNG"), "differ by more than"),
        (saved(np.zeros((4, 4), np.float32), "TIFF"), "mode is F"),
        (saved(gradient(), "EPS"), "not an image in a known format"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else None,
)
def test_what_is_no_image_says_why(raw: object, says: str) -> None:
    assert says in reason(raw)


@settings(max_examples=150, deadline=None)
@given(
    image=st.sampled_from(["JPEG", "PNG", "GIF", "TIFF", "BMP", "WEBP"]),
    cut=st.floats(0, 1),
    flips=st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), max_size=4),
)
def test_damage_never_raises_anything_else(image: str, cut: float, flips: list[tuple[float, int]]) -> None:
    data = bytearray(saved(gradient(), image))
    for place, value in flips:
        data[int(place * len(data))] = value
    try:
        decoded = decode_image(bytes(data[: int(cut * len(data))]), LIMIT)
    except InvalidRow:
        return
    assert decoded.width * decoded.height <= LIMIT


def test_decoding_is_the_same_from_many_threads() -> None:
    data = [saved(gradient(), "JPEG", quality=quality) for quality in range(40, 90)]
    alone = [decode_image(raw, LIMIT).tobytes() for raw in data]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda raw: decode_image(raw, LIMIT).tobytes(), data))
    assert together == alone
