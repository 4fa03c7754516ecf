"""Compile with Inductor for a CUDA GPU that is not there, and read the code.

Dynamo runs outside and sees fake CUDA tensors; only the backend (AOTAutograd and
Inductor) runs inside :func:`fake_gpu`, where torch and Triton are told of a GPU.
Lowering, scheduling and code generation are torch's own. Nothing is compiled to
machine code and nothing runs: timings come from the test, the wrapper is text.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch._subclasses import fake_tensor

H200, B200, A100 = (9, 0), (10, 0), (8, 0)
_NAMES = {H200: "NVIDIA H200", B200: "NVIDIA B200", A100: "NVIDIA A100"}
_SMS = {H200: 132, B200: 148, A100: 108}


@dataclass
class Timings:
    """Canned timings in milliseconds, by kind: ``"ours"``, ``"triton"``, ``"aten"``.

    ``unfused`` is for the GEMM alone, ``fused`` with its epilogue, ``pointwise`` for
    the consumer's own kernel. ``choices`` collects the names that Inductor timed,
    ``inexpressible`` why a fused trial had no kernel.
    """

    unfused: dict[str, float] = field(default_factory=dict)
    fused: dict[str, float] = field(default_factory=dict)
    pointwise: float = 0.2
    choices: list[str] = field(default_factory=list)
    inexpressible: list[str] = field(default_factory=list)

    def of_choice(self, choice: Any) -> float:
        self.choices.append(choice.name)
        return self.unfused.get(kind_of(choice), 10.0)

    def of_module(self, module: Any) -> float:
        trial = getattr(module, "torch_cute_trial", None)
        if trial is None:
            return self.fused.get("triton", 10.0)
        why = json.loads(trial).get("reasons")
        if why is None:
            return self.fused.get("ours", 10.0)
        self.inexpressible += why
        return math.inf


def kind_of(choice: Any) -> str:
    if type(choice).__name__ == "CuteCaller":
        return "ours"
    return "aten" if type(choice).__name__ == "ExternKernelCaller" else "triton"


OURS_WIN = {"ours": 0.9, "triton": 1.1, "aten": 1.0}


@dataclass(frozen=True)
class Compiled:
    """A generated wrapper.

    Attributes:
        code: its text.
        order: position in ``fn``'s arguments of each input of the (first) graph; None
            for a symbolic size, which Dynamo passes beside the tensors.
    """

    code: str
    order: tuple[int | None, ...]


def compile_code(
    fn: Callable[..., Any], args: Sequence[torch.Tensor], **kw: Any
) -> str:
    """The text alone of :func:`compile_fake`."""
    return compile_fake(fn, args, **kw).code


def compile_fake(
    fn: Callable[..., Any],
    args: Sequence[torch.Tensor],
    *,
    capability: tuple[int, int] = H200,
    timings: Timings | None = None,
    options: dict[str, Any] | None = None,
) -> Compiled:
    """The wrapper that Inductor generates for ``fn(*args)``.

    Args:
        args: from :func:`empty`, made in this module's fake mode.
        options: Inductor config patches on top of max_autotune.
    """
    timings = timings or Timings(OURS_WIN, {"ours": 0.95, "triton": 1.15})
    captured: list[str] = []
    placeholders: list[str] = []
    patches = {
        "max_autotune": True,
        "fx_graph_cache": False,
        "compile_threads": 1,
        "autotune_local_cache": False,
        "autotune_num_choices_displayed": 0,
        # Both make real tensors on the GPU; padding's patterns are there once any
        # graph, a simulated one too, was compiled outside of this module.
        "joint_graph_constant_folding": False,
        "shape_padding": False,
        **(options or {}),
    }

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        from torch._inductor.compile_fx import compile_fx

        placeholders.extend(n.name for n in gm.graph.find_nodes(op="placeholder"))
        with fake_gpu(capability, timings, captured):
            compile_fx(gm, inputs, config_patches=patches)
        return gm.forward

    torch._dynamo.reset()
    # Autograd's engine asks the driver itself, so graphs are traced without it.
    with torch._dynamo.config.patch(suppress_errors=False), torch.no_grad():
        torch.compile(fn, backend=backend, fullgraph=True)(*args)
    names = [f"l_{name.lower()}_" for name in inspect.signature(fn).parameters]
    order = tuple(
        names.index(p.lower()) if p.lower() in names else None for p in placeholders
    )
    return Compiled("\n".join(captured), order)


def fake_mode() -> fake_tensor.FakeTensorMode:
    return fake_tensor.FakeTensorMode(allow_non_fake_inputs=True)


def empty(
    *size: int, dtype: torch.dtype = torch.bfloat16, stride: Sequence[int] | None = None
) -> torch.Tensor:
    """A CUDA tensor without data; call inside ``with fake_mode():``."""
    if stride is None:
        return torch.empty(size, dtype=dtype, device="cuda:0")
    return torch.empty_strided(size, tuple(stride), dtype=dtype, device="cuda:0")


def _properties(capability: tuple[int, int]) -> Any:
    return SimpleNamespace(
        name=_NAMES[capability],
        major=capability[0],
        minor=capability[1],
        multi_processor_count=_SMS[capability],
        total_memory=140 * 2**30,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536,
        shared_memory_per_block_optin=232448,
        shared_memory_per_block=49152,
        shared_memory_per_multiprocessor=233472,
        warp_size=32,
        gcnArchName="",
        L2_cache_size=60 * 2**20,
        clock_rate=1980000,
        memory_clock_rate=2600000,
        memory_bus_width=5120,
    )


@contextlib.contextmanager
def fake_gpu(
    capability: tuple[int, int], timings: Timings, captured: list[str]
) -> Iterator[None]:
    """Everything that Inductor asks of a GPU, answered."""
    _clear_caches()
    with contextlib.ExitStack() as stack:
        for target, name, value in _replacements(capability, timings, captured):
            stack.enter_context(mock.patch.object(target, name, value))
        yield
    _clear_caches()


def _replacements(
    capability: tuple[int, int], timings: Timings, captured: list[str]
) -> Iterator[tuple[Any, str, Any]]:
    yield from _cuda_api(capability)
    yield from _inductor_hooks(timings, captured)
    if "torch_cute_backend" in sys.modules:
        yield from _our_hooks()


def _our_hooks() -> Iterator[tuple[Any, str, Any]]:
    """No kernel is compiled or run, ours neither."""
    from torch_cute_backend.inductor import timing
    from torch_cute_backend.runtime import validated
    from torch_cute_backend.status import Status

    yield timing, "warm", _constant(None)
    yield timing, "prefetch", _constant(None)
    yield timing, "compiled", lambda sources: [Status.ok()] * len(sources)
    yield validated, "usable", _constant(Status.ok())


def _cuda_api(capability: tuple[int, int]) -> Iterator[tuple[Any, str, Any]]:
    from torch._dynamo.device_interface import CudaInterface

    properties = _properties(capability)
    values: dict[str, Any] = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "is_initialized": True,
        "_lazy_init": None,
        "get_device_properties": properties,
        "get_device_capability": capability,
        "get_device_name": properties.name,
        "synchronize": None,
        "is_bf16_supported": True,
        "is_tf32_supported": True,
        "_exchange_device": 0,
        "_maybe_exchange_device": 0,
        "get_rng_state": torch.empty(16, dtype=torch.uint8),
        "set_rng_state": None,
        "get_arch_list": ["sm_90", "sm_100"],
        "_is_compiled": True,
    }
    answers = {name: _constant(value) for name, value in values.items()}
    for name, answer in answers.items():
        if hasattr(torch.cuda, name):
            yield torch.cuda, name, answer
        if name in vars(CudaInterface):
            yield CudaInterface, name, staticmethod(answer)
        if name in vars(CudaInterface.Worker):
            yield CudaInterface.Worker, name, staticmethod(answer)
    yield fake_tensor, "init_gpu_context", _constant(None)


def _inductor_hooks(
    timings: Timings, captured: list[str]
) -> Iterator[tuple[Any, str, Any]]:
    import triton
    from torch._inductor.fx_passes import joint_graph
    from torch._inductor.graph import GraphLowering
    from torch._inductor.scheduler import Scheduler
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    target = triton.backends.compiler.GPUTarget("cuda", 100, 32)
    driver = SimpleNamespace(
        get_current_target=_constant(target),
        get_current_device=_constant(0),
        get_device_interface=_constant(torch.cuda),
        utils=SimpleNamespace(
            get_device_properties=_constant({"max_shared_mem": 232448})
        ),
    )
    yield type(triton.runtime.driver), "active", driver
    # The attention patterns build real tensors on the GPU.
    yield joint_graph, "lazy_init", _constant(None)

    def make_benchmark_fn(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return lambda choices: {c: timings.of_choice(c) for c in choices}

    def compile_kernel(self: Any, nodes: Any, hint_override: Any = None) -> Any:
        from torch._inductor.codecache import PyCodeCache

        source = self.generate_kernel_code_from_nodes(nodes, benchmark_kernel=True)
        if "torch_cute_trial" in source:
            return None, PyCodeCache.load(source)
        return None, SimpleNamespace(source=source)

    def compile_to_module(self: Any) -> Any:
        code, _ = self.codegen()
        captured.append(code if isinstance(code, str) else code.value)
        call = _constant([None] * len(self.graph_outputs))
        return SimpleNamespace(
            call=call,
            __file__="",
            __name__="fake",
            runner=None,
            benchmark_compiled_module=None,
        )

    yield AlgorithmSelectorCache, "make_benchmark_fn", classmethod(make_benchmark_fn)
    yield AlgorithmSelectorCache, "make_precompile_fn", _constant(_constant({}))
    yield Scheduler, "compile_kernel", compile_kernel
    yield (
        Scheduler,
        "benchmark_codegened_module",
        (lambda self, module, device=None: (timings.of_module(module), "")),
    )
    yield (
        Scheduler,
        "benchmark_fused_nodes",
        (lambda self, nodes: (timings.pointwise, "")),
    )
    yield GraphLowering, "compile_to_module", compile_to_module


def _constant(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def _clear_caches() -> None:
    """Forget what was cached of one GPU, real or fake."""
    ours = "torch_cute_backend.runtime.device"
    for name in ("torch._inductor.utils", "torch.utils._triton", ours):
        for value in list(vars(sys.modules.get(name, object)).values()):
            _clear(value)
    from torch._inductor.codecache import CacheBase
    from torch._inductor.runtime.hints import DeviceProperties

    for owner in (CacheBase, DeviceProperties):
        for value in vars(owner).values():
            _clear(getattr(value, "__func__", value))


def _clear(value: Any) -> None:
    if isinstance(value, functools._lru_cache_wrapper):
        value.cache_clear()
