"""PTX text to instructions.

In: PTX text as produced by NVVM (inline assembly with its own scopes included). Out:
``Kernel`` objects: parameters, registers, shared variables and a flat list of ``Instr``
with resolved labels. Knows the grammar, not the meaning of any opcode. Registers and
labels of nested ``{ }`` scopes get unique names (``P1@3``), because inline assembly
repeats them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .report import BadInput, SimError


@dataclass(frozen=True)
class Reg:
    """A register operand; ``negated`` is the ``!`` of a predicate source."""

    name: str
    negated: bool = False


@dataclass(frozen=True)
class Imm:
    """An immediate: raw bits for ``0f``/``0d`` literals, else a signed integer."""

    value: int
    float_bits: int = 0


@dataclass(frozen=True)
class Sym:
    """A label, parameter or variable name, with a byte offset."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Sink:
    """The ``_`` destination."""


@dataclass(frozen=True)
class Vec:
    """``{a, b, ...}``."""

    items: tuple[Operand, ...]


@dataclass(frozen=True)
class Dual:
    """``d|p``: a value and a predicate destination."""

    first: Operand
    second: Operand


@dataclass(frozen=True)
class Mem:
    """``[base + offset]`` or ``[base, {coordinates}]`` and further items."""

    base: Operand
    offset: int = 0
    extra: tuple[Operand, ...] = ()


Operand = Reg | Imm | Sym | Sink | Vec | Dual | Mem


@dataclass
class Instr:
    """One instruction: ``parts`` is the opcode split at dots.

    ``guard`` the predicate.
    """

    line: int
    opcode: str
    operands: tuple[Operand, ...]
    guard: Reg | None = None
    scopes: tuple[int, ...] = ()
    loc: tuple[int, int] | None = None

    @property
    def parts(self) -> list[str]:
        return self.opcode.split(".")


@dataclass(frozen=True)
class Param:
    name: str
    size: int


@dataclass
class Kernel:
    """A parsed ``.entry``."""

    name: str
    params: tuple[Param, ...]
    registers: dict[str, str] = field(default_factory=dict)
    shared: list[tuple[str, int, int]] = field(default_factory=list)
    local: list[tuple[str, int, int]] = field(default_factory=list)
    instrs: list[Instr] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    files: dict[int, str] = field(default_factory=dict)
    target: str = ""

    def source_line(self, instr: Instr) -> str | None:
        """``file:line`` of the source, when the PTX has line information."""
        if instr.loc is None:
            return None
        return f"{self.files.get(instr.loc[0], '?')}:{instr.loc[1]}"


_TYPE_BYTES = {
    "b8": 1,
    "u8": 1,
    "s8": 1,
    "b16": 2,
    "u16": 2,
    "s16": 2,
    "f16": 2,
    "b32": 4,
    "u32": 4,
    "s32": 4,
    "f32": 4,
    "b64": 8,
    "u64": 8,
    "s64": 8,
    "f64": 8,
    "b128": 16,
}
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\(", re.S)
_PARAM = re.compile(
    r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+"
    r"(?:\.ptr\s*(?:\.\w+\s*)?(?:\.align\s+\d+\s*)?)?"
    r"([\w$]+)(?:\[(\d+)\])?"
)
_VARIABLE = re.compile(r"(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)(?:\[(\d*)\])?")
_LABEL = re.compile(r"([$\w]+)\s*:(?!:)")
_OPCODE = re.compile(r"(?:@(!?)([%$\w]+)\s+)?([a-z][\w.:]*)\s*(.*)", re.S)


def entry_param_sizes(ptx: str) -> dict[str, tuple[int, ...]]:
    """Byte sizes of each kernel's parameters, by kernel name."""
    return {
        match.group(1): tuple(p.size for p in _params(ptx, match.end()))
        for match in _ENTRY.finditer(ptx)
    }


def _params(text: str, start: int) -> tuple[Param, ...]:
    header = text[start : _find(text, ")", start)]
    return tuple(
        Param(name, _TYPE_BYTES[kind] * int(count or 1))
        for kind, name, count in _PARAM.findall(header)
    )


def parse(ptx: str) -> dict[str, Kernel]:
    """Parse all kernels of a PTX module.

    Raises:
        BadInput: the text is not PTX, or ends too early.
        SimError: a statement cannot be parsed.
    """
    if ".version" not in ptx or ".target" not in ptx:
        raise BadInput("not a PTX module: no .version/.target directive")
    target = re.search(r"\.target\s+([\w, ]+)", ptx)
    shared = [
        _shared(m)
        for m in re.findall(r"^\s*(?:\.extern )?\.shared ([^;{]+);", ptx, re.M)
    ]
    files = {int(n): name for n, name in re.findall(r'\.file\s+(\d+)\s+"([^"]+)"', ptx)}
    kernels = {}
    for match in _ENTRY.finditer(ptx):
        kernel = Kernel(match.group(1), _params(ptx, match.end()), files=files)
        kernel.target = target.group(1).strip() if target else ""
        kernel.shared = list(shared)
        start = _find(ptx, "{", _find(ptx, ")", match.end()))
        _Body(ptx, start + 1, kernel).run()
        kernels[kernel.name] = kernel
    if not kernels:
        raise BadInput("the PTX module has no .entry")
    return kernels


def _find(text: str, what: str, start: int) -> int:
    """As ``str.index``; a text without it is PTX that was cut off."""
    found = text.find(what, start)
    if found < 0:
        name = "end of line" if what == "\n" else repr(what)
        raise BadInput(f"the PTX ends too early: {name} is missing", text.count("\n"))
    return found


def _shared(text: str) -> tuple[str, int, int]:
    match = _VARIABLE.search(text)
    if match is None:
        raise SimError(f"cannot parse shared variable: {text}")
    align, kind, name, count = match.groups()
    size = 0 if count == "" else _TYPE_BYTES[kind] * int(count or 1)
    return name, size, int(align or _TYPE_BYTES[kind])


class _Body:
    """Statement scanner of one kernel body."""

    def __init__(self, text: str, start: int, kernel: Kernel) -> None:
        self.text = text
        self.at = start
        self.line = text.count("\n", 0, start) + 1
        self.kernel = kernel
        self.scopes: list[int] = [0]
        self.next_scope = 1
        self.names: list[dict[str, str]] = [{}]
        self.loc: tuple[int, int] | None = None
        self.label_scopes: dict[tuple[int, str], str] = {}

    def run(self) -> None:
        while self.scopes:
            self._skip_blank()
            char = self.text[self.at : self.at + 1]
            if char == "{":
                self._open()
            elif char == "}":
                self.at += 1
                self.scopes.pop()
                self.names.pop()
            elif not char:
                _find(self.text, "}", self.at)
            elif char == ";":
                self.at += 1
            else:
                self._statement()
        for instr in self.kernel.instrs:
            if instr.opcode.split(".")[0] == "bra":
                instr.operands = (self._resolve(instr),)

    def _open(self) -> None:
        self.at += 1
        self.scopes.append(self.next_scope)
        self.next_scope += 1
        self.names.append({})

    def _skip_blank(self) -> None:
        text = self.text
        while True:
            while text[self.at : self.at + 1].isspace():
                self.line += text[self.at] == "\n"
                self.at += 1
            if text.startswith("//", self.at):
                self.at = _find(text, "\n", self.at)
            elif text.startswith("/*", self.at):
                stop = _find(text, "*/", self.at) + 2
                self.line += text.count("\n", self.at, stop)
                self.at = stop
            else:
                return

    def _statement(self) -> None:
        text = self.text
        label = _LABEL.match(text, self.at)
        if label:
            self._define_label(label.group(1))
            self.at = label.end()
            return
        if text.startswith(".loc", self.at):
            stop = _find(text, "\n", self.at)
            numbers = text[self.at : stop].split()[1:3]
            self.loc = (int(numbers[0]), int(numbers[1]))
            self.at = stop
            return
        stop = _find(text, ";", self.at)
        body = text[self.at : stop]
        line = self.line
        self.line += body.count("\n")
        self.at = stop + 1
        body = re.sub(r"//[^\n]*|/\*.*?\*/", "", body, flags=re.S).strip()
        if body.startswith("."):
            self._directive(body, line)
        else:
            self._instruction(body, line)

    def _define_label(self, name: str) -> None:
        scope = self.scopes[-1]
        unique = name if scope == 0 else f"{name}@{scope}"
        self.label_scopes[(scope, name)] = unique
        self.kernel.labels[unique] = len(self.kernel.instrs)

    def _resolve(self, instr: Instr) -> Operand:
        target = instr.operands[0]
        if isinstance(target, Sym):
            for scope in reversed(instr.scopes):
                unique = self.label_scopes.get((scope, target.name))
                if unique:
                    return Sym(unique)
        raise SimError(f"unknown branch target {target}", instr.line)

    def _directive(self, body: str, line: int) -> None:
        word, _, rest = body.partition(" ")
        word = word.split("\t")[0]
        if word == ".reg":
            self._declare(body[4:].strip())
        elif word == ".shared":
            self.kernel.shared.append(_shared(rest))
        elif word == ".local":
            self.kernel.local.append(_shared(rest))
        elif word not in (".pragma", ".maxntid", ".reqntid", ".minnctapersm"):
            raise SimError(f"unsupported directive {word}", line)

    def _declare(self, text: str) -> None:
        kind, names = text.split(None, 1)
        scope = self.scopes[-1]
        for name in names.split(","):
            name = name.strip()
            ranged = re.fullmatch(r"([%$\w]+)<(\d+)>", name)
            plain = (
                [f"{ranged[1]}{i}" for i in range(int(ranged[2]))] if ranged else [name]
            )
            for item in plain:
                unique = item if scope == 0 else f"{item}@{scope}"
                self.names[-1][item] = unique
                self.kernel.registers[unique] = kind[1:]

    def _instruction(self, body: str, line: int) -> None:
        match = _OPCODE.fullmatch(body)
        if match is None:
            raise SimError(f"cannot parse {body!r}", line)
        negate, guard, opcode, rest = match.groups()
        operands = tuple(self._operand(t, line) for t in _split(rest)) if rest else ()
        guarded = Reg(self._register(guard, line), negate == "!") if guard else None
        self.kernel.instrs.append(
            Instr(line, opcode, operands, guarded, tuple(self.scopes), self.loc)
        )

    def _register(self, name: str, line: int) -> str:
        found = self._lookup(name)
        if found is None:
            raise SimError(f"undeclared register {name}", line)
        return found

    def _lookup(self, name: str) -> str | None:
        for names in reversed(self.names):
            if name in names:
                return names[name]
        return None

    def _operand(self, text: str, line: int) -> Operand:
        text = text.strip()
        if text == "_":
            return Sink()
        if text.startswith("{"):
            return Vec(tuple(self._operand(t, line) for t in _split(text[1:-1])))
        if text.startswith("["):
            return self._memory(text[1:-1], line)
        if "|" in text:
            first, second = text.split("|", 1)
            return Dual(self._operand(first, line), self._operand(second, line))
        if text.startswith("!"):
            return Reg(self._register(text[1:], line), True)
        found = self._lookup(text)
        if found is not None:
            return Reg(found)
        return _immediate(text) or self._symbol(text, line)

    def _symbol(self, text: str, line: int) -> Operand:
        match = re.fullmatch(r"([%$\w]+(?:\.[xyz])?)(?:\s*\+\s*(-?\w+))?", text)
        if match is None:
            raise SimError(f"cannot parse operand {text!r}", line)
        return Sym(match.group(1), int(match.group(2) or "0", 0))

    def _memory(self, text: str, line: int) -> Operand:
        items = _split(text)
        match = re.fullmatch(r"\s*(.+?)\s*(?:\+\s*(-?\w+))?\s*", items[0], re.S)
        if match is None:
            raise SimError(f"cannot parse address [{text}]", line)
        base = self._operand(match.group(1), line)
        extra = tuple(self._operand(t, line) for t in items[1:])
        return Mem(base, int(match.group(2) or "0", 0), extra)


def _immediate(text: str) -> Imm | None:
    if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", text):
        return Imm(int(text[2:], 16), 32)
    if re.fullmatch(r"0[dD][0-9a-fA-F]{16}", text):
        return Imm(int(text[2:], 16), 64)
    if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)U?", text):
        return Imm(int(text.rstrip("U"), 0))
    return None


def _split(text: str) -> list[str]:
    """Split at commas outside brackets."""
    items, depth, start = [], 0, 0
    for index, char in enumerate(text):
        if char in "[{(":
            depth += 1
        elif char in "]})":
            depth -= 1
        elif char == "," and depth == 0:
            items.append(text[start:index])
            start = index + 1
    tail = text[start:].strip()
    return [*items, tail] if tail else items
