"""The steps of an evaluation. What they read and write has addresses: errors say them without their secrets."""

from congruence.kernels.errors import CongruenceError
from congruence.tasks.runtime.errors import mask_text

CongruenceError.shown = mask_text
