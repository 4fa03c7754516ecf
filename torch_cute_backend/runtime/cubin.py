"""Read a cubin: find it in an exported object, and what ptxas allotted to its kernel.

A cubin is an ELF file. Its ``.nv.info`` section lists attributes as (format, attribute,
size, data) records; the ones read here carry a symbol index and a number. Reading it
ourselves needs no CUDA toolkit; a test compares with ``cuobjdump``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from torch_cute_backend.errors import CompileError

_MAGIC = b"\x7fELF"
_EM_CUDA = 190
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SHT_SYMTAB = 2

_FORMAT_SIZED = 4
_REGISTER_COUNT = 0x2F
_FRAME_SIZE = 0x11


@dataclass(frozen=True)
class CubinInfo:
    """What ptxas allotted to one kernel.

    Attributes:
        kernel: symbol name.
        registers: registers a thread at launch.
        stack_bytes: local-memory frame a thread.
        static_smem_bytes: shared memory a CTA known to ptxas (the dynamic part is the
            launch's).
        code_bytes: size of the machine code.
    """

    kernel: str
    registers: int
    stack_bytes: int
    static_smem_bytes: int
    code_bytes: int


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    data: bytes
    size: int


def _header(data: bytes) -> tuple[int, ...]:
    if len(data) < _HEADER.size or data[:4] != _MAGIC:
        raise CompileError("not an ELF file")
    return _HEADER.unpack_from(data)[1:]


def extract(obj: bytes) -> bytes:
    """The cubin inside an exported object: the second ELF image in the file.

    Raises:
        CompileError: there is none, or more than one.
    """
    found = []
    start = obj.find(_MAGIC, len(_MAGIC))
    while start >= 0:
        image = obj[start:]
        if len(image) >= _HEADER.size and _header(image)[1] == _EM_CUDA:
            found.append(image[: _extent(image)])
        start = obj.find(_MAGIC, start + len(_MAGIC))
    if len(found) != 1:
        raise CompileError(f"the object holds {len(found)} cubins, expected 1")
    return found[0]


def _extent(image: bytes) -> int:
    """Bytes of an ELF image: the end of its last table or section."""
    _, _, _, _, phoff, shoff, _, _, phsize, phnum, shsize, shnum, _ = _header(image)
    end = max(phoff + phsize * phnum, shoff + shsize * shnum)
    if end > len(image):
        raise CompileError("the cubin is truncated")
    return end


def _sections(image: bytes) -> list[_Section]:
    _, _, _, _, _, shoff, _, _, _, _, shsize, shnum, names = _header(image)
    rows = [_SECTION.unpack_from(image, shoff + i * shsize) for i in range(shnum)]

    def content(row: tuple[int, ...]) -> bytes:
        return image[row[4] : row[4] + row[5]]

    strings = content(rows[names])
    return [_Section(_string(strings, r[0]), r[1], content(r), r[5]) for r in rows]


def _string(table: bytes, offset: int) -> str:
    return table[offset : table.index(b"\0", offset)].decode()


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(attribute, payload) of every sized record of a ``.nv.info`` section."""
    offset = 0
    while offset + 4 <= len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, offset)
        offset += 4
        if form != _FORMAT_SIZED:
            # The other formats keep their value in the two size bytes.
            continue
        yield attribute, data[offset : offset + size]
        offset += size


def read(image: bytes) -> CubinInfo:
    """Resources of the only kernel of a cubin.

    Raises:
        CompileError: malformed, or not exactly one kernel.
    """
    try:
        return _read(image)
    except (struct.error, ValueError, IndexError) as error:
        raise CompileError(f"malformed cubin: {error}") from error


def _read(image: bytes) -> CubinInfo:
    by_name = {s.name: s for s in _sections(image)}
    kernels = [n.removeprefix(".text.") for n in by_name if n.startswith(".text.")]
    if len(kernels) != 1:
        raise CompileError(f"the cubin holds {len(kernels)} kernels, expected 1")
    kernel = kernels[0]
    values: dict[int, int] = {}
    index = _symbol_index(by_name, kernel)
    for attribute, payload in _attributes(by_name[".nv.info"].data):
        if len(payload) == 8:
            symbol, value = struct.unpack("<II", payload)
            if symbol == index:
                values[attribute] = value
    if _REGISTER_COUNT not in values or _FRAME_SIZE not in values:
        raise CompileError(f"the cubin does not tell {kernel}'s registers and stack")
    shared = by_name.get(f".nv.shared.{kernel}")
    return CubinInfo(
        kernel=kernel,
        registers=values[_REGISTER_COUNT],
        stack_bytes=values[_FRAME_SIZE],
        static_smem_bytes=shared.size if shared else 0,
        code_bytes=by_name[f".text.{kernel}"].size,
    )


def _symbol_index(by_name: dict[str, _Section], kernel: str) -> int:
    table = next(s for s in by_name.values() if s.kind == _SHT_SYMTAB)
    strings = by_name[".strtab"].data
    for i in range(len(table.data) // _SYMBOL.size):
        name = _SYMBOL.unpack_from(table.data, i * _SYMBOL.size)[0]
        if _string(strings, name) == kernel:
            return i
    raise CompileError(f"the cubin's symbol table lacks {kernel}")
