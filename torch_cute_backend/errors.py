"""Exceptions of torch_cute_backend.

Only bugs and broken promises raise. "This problem or schedule is not supported" is a
value, see :mod:`torch_cute_backend.status`.
"""


class CuteBackendError(Exception):
    """Base class of every exception that this package raises on purpose."""


class IRError(CuteBackendError):
    """A tile program was built or rewritten into something ill-formed."""


class VerifyError(IRError):
    """The verifier found a rule broken; the message names rule, found and expected."""


class CodegenError(CuteBackendError):
    """An emitter met a statement or an operand that it has no text for."""


class CompileError(CuteBackendError):
    """The CuTe DSL or ptxas rejected a kernel, timed out, or broke a build gate."""


class CacheError(CuteBackendError):
    """A cache folder or entry is unusable; the message names it."""


class TableError(CuteBackendError):
    """A pretuned table or row is malformed; the message names file and row."""


class UserError(CuteBackendError):
    """Bad input from a person. The command line prints it as one line, exit code 2."""
