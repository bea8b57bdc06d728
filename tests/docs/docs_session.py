"""Runs snippets of a page as a reader would: one shell, then one Python, against a real stack.

Nothing in a snippet is replaced but the address: a reader's server listens on port 8000.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from docs_snippets import ROOT, Snippet

if TYPE_CHECKING:
    from collections.abc import Sequence

WRITTEN = "http://127.0.0.1:8000"
# What pages leave to their reader. A page that defines a name itself wins.
PRELUDE = """\
from openai import OpenAI as _OpenAI
model = _OpenAI(base_url={url!r} + "/v1", api_key="none").models.list().data[0].id
messages = [{{"role": "user", "content": "Plan a day in Lisbon."}}]
revised = [{{"role": "user", "content": "Plan a day in Porto."}}]
"""
LIMIT_S = 120.0


class SnippetFailed(AssertionError):
    """A snippet ended badly; what was printed is in the text."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Somebody with a terminal, in an empty folder of their own."""

    folder: Path
    url: str
    env: dict[str, str]

    @property
    def environment(self) -> dict[str, str]:
        """`retire` and `python3` on the PATH are those of this environment."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        roots = os.pathsep.join(str(ROOT / one) for one in ("node", "operator", "."))
        return {**os.environ, "PATH": path, "PYTHONPATH": roots, **self.env}

    def shell(self, found: Sequence[Snippet]) -> str:
        """One session; the first command that fails ends it."""
        lines = ["set -euo pipefail", "trap 'kill $(jobs -p) 2> /dev/null || true' EXIT"]
        for one in found:
            lines += [f": {one.place}", one.text]
        return self._run(["bash", "-c", self._here("\n".join(lines))])

    def python(self, found: Sequence[Snippet]) -> str:
        """One program: what a snippet defines, the next ones know."""
        parts = [PRELUDE.format(url=self.url), *(one.text for one in found)]
        return self._run([sys.executable, "-c", self._here("\n".join(parts))])

    def _here(self, text: str) -> str:
        return text.replace(WRITTEN, self.url)

    def _run(self, command: list[str]) -> str:
        child = subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            printed, _ = child.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            printed, _ = child.communicate()
            raise SnippetFailed(f"not done in {LIMIT_S:.0f} s\n{printed}") from None
        if child.returncode:
            raise SnippetFailed(f"status {child.returncode}\n{printed}\n{command[-1]}")
        return printed
