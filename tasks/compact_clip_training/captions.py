"""What the compact CLIP reads of a digit: its name and its rotation, in words."""

DIGIT_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

TEMPLATES = (
    "a handwritten {digit} {turn}",
    "a {digit} {turn}",
    "the digit {digit}, {turn}",
)


def turn(angle: float) -> str:
    """The rotation in words, to the degree; positive angles turn to the left."""
    degrees = round(abs(angle))
    if degrees == 0:
        return "standing upright"
    return f"turned {degrees} degrees to the {'left' if angle > 0 else 'right'}"


def caption(digit: int, angle: float, template: int = 0) -> str:
    """A caption, for example "a handwritten seven turned 30 degrees to the left"."""
    return TEMPLATES[template % len(TEMPLATES)].format(digit=DIGIT_NAMES[digit], turn=turn(angle))
