"""``compile``: a GEMM's kernel to source, PTX, cubin or SASS, on any machine."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from torch_cute_backend.build import KernelBuild
from torch_cute_backend.cli.problem import plan, require_build
from torch_cute_backend.errors import CompileError, UserError


def run(args: argparse.Namespace) -> int:
    built = require_build(plan(args))
    if args.emit == "source":
        _write(args.output, built.source.text.encode())
        return 0
    if args.emit == "ptx":
        _write(args.output, _ptx(built, gate=not args.no_gate).encode())
        return 0
    from torch_cute_backend.runtime.pool import shared_pool

    gate = not args.no_gate
    entry = shared_pool().submit(built.source, gate=gate).result()
    if args.emit is None:
        print(f"kernel:    {entry.kernel}")
        print(f"resources: {entry.resources.describe()}")
        for warning in entry.warnings:
            print(f"ptxas:     {warning}")
        print(f"cached:    {entry.folder}")
    elif args.emit == "cubin":
        _write(args.output, entry.cubin.read_bytes())
    else:
        _write(args.output, _sass(entry.cubin))
    return 0


def _ptx(built: KernelBuild, *, gate: bool) -> str:
    """Not kept in the cache, so the kernel is compiled again, in this process."""
    from torch_cute_backend.runtime.compile import compile_kernel

    ptx = compile_kernel(built.source, gate=gate, ptx=True).ptx
    if ptx is None:
        raise CompileError(f"{built.source.name}: the DSL kept no PTX")
    return ptx


def _sass(cubin: Path) -> bytes:
    from torch_cute_backend.runtime import toolchain

    tool = toolchain.cuda_tool("cuobjdump")
    if tool is None:
        raise CompileError("cuobjdump was not found (triton's wheel has one)")
    done = subprocess.run([tool, "-sass", str(cubin)], capture_output=True, check=False)
    if done.returncode != 0:
        words = done.stderr.decode(errors="replace").strip()
        raise CompileError(f"cuobjdump failed: {words}")
    return done.stdout


def _write(output: str | None, data: bytes) -> None:
    """To a file, or to stdout unless that would put binary data on a terminal."""
    if output is None or output == "-":
        if sys.stdout.isatty() and b"\0" in data:
            raise UserError("binary output: give a file with -o")
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    try:
        Path(output).write_bytes(data)
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror}") from error
