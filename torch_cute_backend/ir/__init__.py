"""The typed IR of tile programs: values, expressions, effects, statements, programs.

Importing this package registers every statement class.
"""

from torch_cute_backend.ir import dataflow, structure, sync
from torch_cute_backend.ir.ops import STATEMENTS, Stmt
from torch_cute_backend.ir.program import Program

__all__ = ["STATEMENTS", "Program", "Stmt", "dataflow", "structure", "sync"]
