"""Who may import what: the layers of the package, read from its syntax trees.

Also what an import of the package may load, and what may never appear in it.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

import torch_cute_backend

PACKAGE = Path(torch_cute_backend.__file__).parent
ROOT = PACKAGE.name

LAYERS: dict[str, tuple[str, ...]] = {
    # Element types and epilogue graphs are values that IR statements hold.
    "ir": ("errors", "ir", "dtypes", "epilogue"),
    "passes": ("errors", "status", "ir", "passes"),
    "arch": ("arch", "errors", "status", "problem", "schedule", "dtypes"),
    "epilogue": ("epilogue", "dtypes", "errors", "status"),
    "codegen": (
        *("codegen", "ir", "arch", "epilogue"),
        *("dtypes", "errors", "problem", "schedule", "status"),
    ),
    "schedulers": (
        *("schedulers", "ir", "arch"),
        *("errors", "problem", "schedule", "status"),
    ),
    "tuning": (
        *("tuning", "arch", "epilogue"),
        *("dtypes", "errors", "problem", "schedule", "status"),
    ),
}
"""For each folder, the parts of the package that it may import."""

FOREIGN: dict[str, tuple[str, ...]] = {
    "cutlass": ("runtime/", "sim/launch"),
    "torch._inductor": ("inductor/",),
    "triton": ("inductor/", "bench/"),
    "tvm_ffi": ("runtime/",),
}
"""For each foreign package, the path prefixes that may import it."""

EXCEPT = ("tuning/search.py", "tuning/publish.py", "tuning/model_shapes.py")
"""They make the tables, on a GPU; the rest of their folder looks up and models."""

TORCH_FREE = ("ir", "passes", "arch", "codegen", "schedulers", "templates", "tuning")
"""Folders that neither need torch nor numpy, so that their tests take seconds."""


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def files_of(folder: str) -> list[Path]:
    """A folder's modules, without the exceptions."""
    found = sorted((PACKAGE / folder).rglob("*.py"))
    return [p for p in found if str(p.relative_to(PACKAGE)) not in EXCEPT]


def imports(path: Path) -> list[tuple[str, int]]:
    """(module, line) of each import statement that can run, ``TYPE_CHECKING`` aside."""
    tree = ast.parse(path.read_text(), str(path))
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    found: list[tuple[str, int]] = []
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            found += [(f"{base}.{alias.name}", node.lineno) for alias in node.names]
    return found


RUNS_FOREIGN_TEXT = (PACKAGE / "runtime" / "compile.py",)
"""May catch any exception: the DSL runs generated text, which can raise all kinds."""


def is_simulator(path: Path) -> bool:
    """A developer's tool, whose assertions guard no user's result."""
    return path.relative_to(PACKAGE).parts[0] == "sim"


def is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


class TestImportRules(TestCase):
    @parametrize("folder", sorted(LAYERS))
    def test_layer(self, folder):
        allowed = LAYERS[folder]
        for path in files_of(folder):
            for module, line in imports(path):
                if not is_in(module, ROOT):
                    continue
                part = module.split(".")[1]
                self.assertIn(part, allowed, f"{path}:{line} imports {module}")

    @parametrize("package", sorted(FOREIGN), name_fn=lambda p: p.replace(".", "_"))
    def test_foreign_package(self, package):
        prefixes = FOREIGN[package]
        for path in modules():
            inside = str(path.relative_to(PACKAGE)).startswith(prefixes)
            for module, line in imports(path):
                self.assertFalse(
                    is_in(module, package) and not inside,
                    f"{path}:{line} imports {module}",
                )

    @parametrize("folder", TORCH_FREE)
    def test_no_torch(self, folder):
        for path in files_of(folder):
            for module, line in imports(path):
                for heavy in ("torch", "numpy"):
                    self.assertFalse(
                        is_in(module, heavy), f"{path}:{line} imports {module}"
                    )

    def test_never(self):
        """pickle runs code on loading, assert vanishes under -O, a broad except hides
        bugs: all are banned."""
        for path in modules():
            tree = ast.parse(path.read_text())
            for module, line in imports(path):
                for banned in ("pickle", "marshal", "shelve", "dill", "cloudpickle"):
                    self.assertFalse(is_in(module, banned), f"{path}:{line}")
            for node in ast.walk(tree):
                where = f"{path}:{getattr(node, 'lineno', 0)}"
                if not is_simulator(path):
                    self.assertNotIsInstance(node, ast.Assert, where)
                if isinstance(node, ast.ExceptHandler):
                    self.assertIsNotNone(node.type, f"bare except: {where}")
                    caught = ast.unparse(node.type)
                    if path not in RUNS_FOREIGN_TEXT:
                        self.assertNotRegex(caught, r"\b(Base)?Exception\b", where)

    def test_the_rules_see_a_violation(self):
        """The reader of imports must find what it looks for."""
        source = (
            "import cutlass.cute as cute\n"
            "def f():\n    from torch._inductor import config\n"
            "if TYPE_CHECKING:\n    import triton\n"
        )
        with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
            file.write(source)
            file.flush()
            names = [name for name, _ in imports(Path(file.name))]
        self.assertEqual(names, ["cutlass.cute", "torch._inductor.config"])


PROBE = """
import json, sys
import torch_cute_backend
heavy = ("torch", "numpy", "cutlass", "tvm_ffi", "triton")
print(json.dumps([m for m in heavy if m in sys.modules]))
"""

WITH_TORCH = """
import json, sys
import torch
import torch_cute_backend
names = ("cutlass", "torch._inductor.lowering", "torch._dynamo.backends.registry")
print(json.dumps([[m for m in names if m in sys.modules], torch.cuda.is_initialized()]))
"""

WITH_INDUCTOR = """
import json
import torch_cute_backend
from torch_cute_backend.inductor import install
import torch._inductor.compile_fx
print(json.dumps(install.installed()))
"""


class TestImportingThePackage(TestCase):
    def probe(self, script, **environ):
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": str(PACKAGE.parent), **environ},
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(done.stdout), done.stderr

    def test_loads_nothing_heavy(self):
        self.assertEqual(self.probe(PROBE)[0], [])

    def test_after_torch_loads_neither_inductor_nor_cuda(self):
        self.assertEqual(self.probe(WITH_TORCH)[0], [[], False])

    def test_malformed_variable_is_a_warning_once_inductor_is_loaded(self):
        wrong = {"TORCH_CUTE_BACKEND_ENABLED": "maybe"}
        self.assertEqual(self.probe(PROBE, **wrong), ([], ""))
        installed, stderr = self.probe(WITH_INDUCTOR, **wrong)
        self.assertFalse(installed)
        self.assertIn("TORCH_CUTE_BACKEND_ENABLED='maybe'", stderr)
        self.assertEqual(self.probe(WITH_INDUCTOR)[0], True)

    def test_autoload_only_on_request(self):
        script = (
            "import json, sys; import torch_cute_backend_autoload as a; a.autoload();"
            "print(json.dumps('torch_cute_backend' in sys.modules))"
        )
        self.assertEqual(self.probe(script)[0], False)
        on = self.probe(script, TORCH_CUTE_BACKEND_AUTOLOAD="1")
        self.assertEqual(on[0], True)


instantiate_parametrized_tests(TestImportRules)

if __name__ == "__main__":
    run_tests()
