"""Helper modules of ``test`` and ``test/sim`` are importable in every test here."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
