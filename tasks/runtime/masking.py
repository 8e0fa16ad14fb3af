"""Masking of secrets, as steps use it: see ``congruence.kernels.masking``, which our errors mask their messages by."""

from congruence.kernels.masking import MASK as MASK
from congruence.kernels.masking import mask_secrets as mask_secrets
from congruence.kernels.masking import mask_text as mask_text
