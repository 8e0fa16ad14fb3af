"""What pretrained encoders need, as far as it is installed, for the one process that workers are forks of."""

from contextlib import suppress
from importlib import import_module

with suppress(Exception):  # the workers say it, beside the encoder that lacks it
    import_module("congruence.tasks.encoders.pretrained")
