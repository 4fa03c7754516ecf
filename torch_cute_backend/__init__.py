"""Persistent warp-specialised CuTe DSL kernels for ``torch.compile``.

Importing the package offers them to Inductor beside ATen and Triton, wherever
``max_autotune`` is on; :func:`disable` takes them out again. Importing it loads neither
torch's Inductor nor the CuTe DSL, and touches no GPU.
"""

from __future__ import annotations

import importlib

from torch_cute_backend import config
from torch_cute_backend.errors import UserError
from torch_cute_backend.version import __version__

__all__ = ["__version__", "disable", "enable", "is_available"]

_INSTALLER = "torch_cute_backend.inductor.install"


def enable() -> None:
    """Offer our kernels to Inductor, in this process. Safe to repeat.

    If Inductor is not imported yet, this takes effect when it is. Raises nothing for
    what is missing or unsupported (torch, the CuTe DSL, the cache folder, a malformed
    setting): torch then stays stock, and one warning says why.
    """
    importlib.import_module(_INSTALLER).install()


def disable() -> None:
    """Undo :func:`enable`: Inductor generates the code of a stock torch again.

    Safe to repeat. Graphs that are compiled already keep their kernels.
    """
    importlib.import_module(_INSTALLER).uninstall()


def is_available() -> bool:
    """Can kernels be compiled here, and can the current GPU run them?

    False, never an exception, without a GPU or with an unsupported CuTe DSL;
    ``torch-cute doctor`` says which. Initialises CUDA where there is a GPU.
    """
    from torch_cute_backend.runtime import device, toolchain

    return toolchain.dsl_supported(toolchain.dsl_version()) and (
        device.default_arch() is not None
    )


def _enable_on_import() -> None:
    try:
        wanted = config.get().enabled
    except UserError:
        # A typing error in a variable must not stop the program that imports us. It is
        # reported when Inductor is loaded, and by every command.
        wanted = True
    if wanted:
        enable()


_enable_on_import()
