"""Our own sentences in ASCII, for databases that store nothing else."""

from __future__ import annotations

_PLAIN = str.maketrans(
    {
        "\N{MIDDLE DOT}": "|",
        "\N{EN DASH}": "-",
        "\N{MINUS SIGN}": "-",
        "\N{HORIZONTAL ELLIPSIS}": "...",
        "\N{LEFT DOUBLE QUOTATION MARK}": '"',
        "\N{RIGHT DOUBLE QUOTATION MARK}": '"',
        "\N{SUPERSCRIPT TWO}": "^2",
        "\N{MULTIPLICATION SIGN}": "x",
        "\N{PLUS-MINUS SIGN}": "+-",
    }
)


def plain(text: str) -> str:
    """``text`` with typographic signs as ASCII; names that people gave keep their letters."""
    return text.translate(_PLAIN)
