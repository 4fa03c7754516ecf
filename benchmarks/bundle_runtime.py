"""What a GPU machine without a package index lacks to run precompiled kernels.

    python benchmarks/bundle_runtime.py --python 3.12 --out runtime.tar.xz

Collects apache-tvm-ffi for that Python version, the CuTe DSL's run-time library and the
DSL's version record (15 MiB; the DSL itself is some 100). There:

    tar xf runtime.tar.xz -C site
    export PYTHONPATH=$PWD:site CUTE_DSL_LIBS=$PWD/site/libcute_dsl_runtime.so

Kernels load and run; compiling needs the whole DSL.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from torch_cute_backend.errors import UserError
from torch_cute_backend.runtime import toolchain

PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_24_x86_64", "manylinux_2_17_x86_64")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default="3.12", help="version there")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    library = toolchain.runtime_library()
    if library is None:
        raise UserError("the CuTe DSL is not installed here")
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder)
        _tvm_ffi(args.python, site)
        record = site / f"nvidia_cutlass_dsl-{toolchain.require_dsl()}.dist-info"
        record.mkdir()
        version = toolchain.require_dsl()
        (record / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: nvidia-cutlass-dsl\nVersion: {version}\n"
        )
        with tarfile.open(args.out, "w:xz") as archive:
            for path in sorted(site.iterdir()):
                archive.add(path, path.name)
            archive.add(library, library.name)
    print(f"{args.out}: {args.out.stat().st_size / 2**20:.1f} MiB")
    return 0


def _tvm_ffi(python: str, site: Path) -> None:
    """The installed version of apache-tvm-ffi, built for ``python``, into ``site``."""
    version = importlib.metadata.version("apache-tvm-ffi")
    with tempfile.TemporaryDirectory() as wheels:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
        command += ["--only-binary=:all:", "--python-version", python]
        command += ["--implementation", "cp", "-d", wheels]
        for platform in PLATFORMS:
            command += ["--platform", platform]
        subprocess.run([*command, f"apache-tvm-ffi=={version}"], check=True)
        for wheel in Path(wheels).glob("*.whl"):
            with zipfile.ZipFile(wheel) as packed:
                packed.extractall(site)


if __name__ == "__main__":
    raise SystemExit(main())
