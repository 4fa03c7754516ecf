"""Entry point ``torch.backends``: runs inside ``import torch``.

A module of its own, outside the package, because importing the package already enables
it. Off unless asked for: a broken plugin must never break ``import torch``, and any
exception raised here would.
"""

from __future__ import annotations

import os

VARIABLE = "TORCH_CUTE_BACKEND_AUTOLOAD"


def autoload() -> None:
    """Import (and so enable) the plugin if ``TORCH_CUTE_BACKEND_AUTOLOAD=1``."""
    if os.environ.get(VARIABLE) == "1":
        import torch_cute_backend  # noqa: F401
