"""What the plugin does in this process: data for ``doctor`` and ``explain``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any


def report() -> dict[str, Any]:
    """State and refusals as plain values, ready for JSON. Imports Inductor.

    Keys: ``torch`` (version), ``supported`` (``"ok"`` or reasons), ``installed``,
    ``backends`` (``"ok"`` or why the list of backends leaves us out), ``ops`` (the
    lowerings that are wrapped), ``refusals`` (of this process, each once).
    """
    import torch
    import torch._inductor.compile_fx
    from torch._inductor.lowering import lowerings

    from torch_cute_backend.inductor import compat, install, lowering, reasons

    return {
        "torch": torch.__version__,
        "supported": str(compat.supported()),
        "installed": install.installed(),
        "backends": str(compat.asked_for()),
        "ops": [
            str(key)
            for key, _, _ in lowering.OPS
            if hasattr(lowerings.get(key), "torch_cute_stock")
        ],
        "refusals": [asdict(refusal) for refusal in reasons.recorded()],
    }
