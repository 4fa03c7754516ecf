"""Golden kernels: generated text kept as files, ``test/golden/<arch>/<name>.py``.

They are read as examples, and compiled to cubins by ``test_cubins.py``. A test fails on
any difference; ``EXPECTTEST_ACCEPT=1`` rewrites the file instead.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from grouped_kernel_cases import ALL_CASES
from kernel_cases import Case
from torch.testing._internal.common_utils import TestCase

GOLDEN = Path(__file__).parent / "golden"
SHOWN_LINES = 40


def golden_cases(arch: str) -> tuple[Case, ...]:
    return tuple(c for c in ALL_CASES if c.golden and c.arch.name == arch)


def golden_path(case: Case) -> Path:
    return GOLDEN / case.arch.name / f"{case.name}.py"


def assert_golden(test: TestCase, case: Case) -> None:
    """The case's text is the file's."""
    path, text = golden_path(case), case.build().source.text
    if os.environ.get("EXPECTTEST_ACCEPT"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    if not path.exists():
        test.fail(f"{path} does not exist; EXPECTTEST_ACCEPT=1 writes it")
    kept = path.read_text(encoding="utf-8")
    if kept != text:
        test.fail(_difference(path, kept, text))


def _difference(path: Path, kept: str, text: str) -> str:
    lines = difflib.unified_diff(
        kept.splitlines(), text.splitlines(), "golden", "generated", lineterm=""
    )
    shown = list(lines)
    more = len(shown) - SHOWN_LINES
    tail = [f"... {more} more lines"] if more > 0 else []
    head = f"{path.name} differs; EXPECTTEST_ACCEPT=1 accepts the generated text"
    return "\n".join([head, *shown[:SHOWN_LINES], *tail])


def assert_no_stale_golden(test: TestCase, arch: str) -> None:
    """Every file belongs to a case: a renamed case must not leave its old text."""
    expected = {golden_path(c).name for c in golden_cases(arch)}
    test.assertEqual({p.name for p in (GOLDEN / arch).glob("*.py")}, expected)
