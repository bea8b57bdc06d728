"""What stands for the images of the chart: this repository's environment, and a Valkey.

``operator`` and ``node`` run from ``.venv``; ``node`` with settings that make a tiny model quick on
a CPU. Must never be imported by the harness itself, which knows no product.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from e2e.binaries import ROOT
from e2e.node.images import PYTHON, Image

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from e2e.history import ClusterHistory

STAND_INS: Final = ROOT / "e2e" / "bin"  # valkey-server, valkey-cli
# A container has no home folder and a read-only root: caches go to its /tmp, if it has one.
_CALM: Final = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # allows the worker in the engine's process
    "HOME": "/tmp",
}


def retire_images(
    history: ClusterHistory | None = None,
    *,
    node_env: Mapping[str, str] | None = None,
    operator_env: Mapping[str, str] | None = None,
    software: Sequence[str] = (),
) -> list[Image]:
    """The table for ``Harness``; ``software``: folders to be seen, such as that of a model."""
    binds = {} if history is None else history.binds
    extra = {} if history is None else history.env
    mine: dict[str, Any] = {"path": (PYTHON,), "software": software, "binds": binds}
    return [
        Image(r".*retire.*/operator", env={**extra, **(operator_env or {})}, **mine),
        Image(r".*retire.*/node", env={**_CALM, **extra, **(node_env or {})}, **mine),
        Image(
            r".*(valkey|redis).*",
            path=(str(STAND_INS), PYTHON),
            command=("valkey-server",),
            user=999,
        ),
    ]
