"""The commands of a page of the documentation, run as they stand there, one after the other.

Nothing in them is replaced. What the page leaves to its reader (which model, a GPU or none) is
given to `helm install` and `helm upgrade` by a wrapper on the PATH that adds values at the end,
where they win; further variables come from the environment.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import yaml

from e2e.binaries import ROOT, binary

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_BLOCK: Final = re.compile(r"^(#+) ([^\n]+)$|^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK: Final = "=== "
_HELM: Final = """#!/bin/bash
case "$1" in
install|upgrade) exec {helm} "$@" --values {values} --set model={model} ;;
*) exec {helm} "$@" ;;
esac
"""


class PageFailed(AssertionError):
    """A command of the page ended badly; all of its output so far is in the text."""


@dataclass(frozen=True, slots=True)
class Block:
    """The commands between two fences, and the heading above them."""

    heading: str
    commands: str


def blocks(page: str) -> list[Block]:
    """Every ``bash`` block of a page, in order."""
    found, heading = [], ""
    for mark in _BLOCK.finditer((ROOT / "docs" / page).read_text()):
        if mark[2]:
            heading = mark[2]
        else:
            found.append(Block(heading, mark[3]))
    return found


def script(found: list[Block]) -> str:
    """One shell session, as a reader's is; the first command that fails ends it."""
    lines = ["set -euo pipefail", "trap 'kill $(jobs -p) 2> /dev/null || true' EXIT"]
    for block in found:
        lines += [f"printf '\\n%s\\n' '{_MARK}{block.heading}'", block.commands]
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Reader:
    """Somebody in a clone of the repository, with kubectl and helm on the PATH."""

    folder: Path
    env: Mapping[str, str]

    @classmethod
    def prepare(
        cls, folder: Path, env: Mapping[str, str], *, model: Path, values: dict[str, Any]
    ) -> Reader:
        """``values``: what suits this machine, added to every release."""
        shutil.copytree(ROOT / "charts", folder / "charts")
        extra, tools = folder / "machine.yaml", folder / "tools"
        extra.write_text(yaml.safe_dump(values))
        tools.mkdir()
        helm = tools / "helm"
        helm.write_text(_HELM.format(helm=binary("helm"), values=extra, model=model))
        helm.chmod(0o755)
        path = os.pathsep.join([str(tools), env["PATH"]])
        return cls(folder, {**env, "PATH": path})

    def run(self, found: list[Block], limit_s: float) -> dict[str, str]:
        """Heading -> what its commands printed; PageFailed with everything otherwise."""
        log = self.folder / "output.txt"
        with log.open("w") as output:
            child = subprocess.Popen(
                ["bash", "-c", script(found)],
                cwd=self.folder,
                env=dict(self.env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status: int | str = child.wait(limit_s)
            except subprocess.TimeoutExpired:
                status = f"not done in {limit_s:.0f} s"
            finally:
                _end(child)
        text = log.read_text(errors="replace")
        if status != 0:
            raise PageFailed(f"{status}\n{text}")
        parts = re.split(rf"(?m)^{_MARK}(.+)\n", text)
        printed: dict[str, str] = {}
        for heading, words in zip(parts[1::2], parts[2::2], strict=True):
            printed[heading] = f"{printed.get(heading, '')}\n{words}".strip()
        return printed


def _end(child: subprocess.Popen[bytes]) -> None:
    """Whatever the page left in the background goes too."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        child.wait()
