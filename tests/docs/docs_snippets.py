"""Every fenced snippet of the documentation, and who executes it.

A snippet of a page in RUN is executed against a real stack, in order with its neighbours. What
cannot be (it starts the stack, or needs a cluster) is executed by a test that ELSEWHERE names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHOWN = frozenset({"text", "console"})  # what a command prints; never a command
RUN = (
    "README.md",
    "docs/quickstart.md",
    "docs/agents.md",
    "docs/http-api.md",
    "docs/operations.md",
)
GENERATED = ROOT / "docs" / "reference"  # whole pages made from the code; proved fresh apart
_FENCE = re.compile(
    r"^(?P<indent> *)```(?:\{ \.)?(?P<language>[a-z]*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$",
    re.M | re.S,
)

_HERE = "tests/docs/test_docs_snippets.py"
_SERVE = (f"{_HERE}::test_every_serve_line_is_understood",)
_MAKE = (f"{_HERE}::test_every_make_target_exists",)
_PIP = (f"{_HERE}::test_every_pip_line_names_extras_that_exist",)
_EXAMPLES = "tests/docs/test_docs_examples.py"
_CHART = ("tests/chart/test_chart_docs.py::test_every_helm_command_of_the_docs_renders",)
# (page, how the snippet begins) -> the tests that execute it. "" is every snippet of the page.
ELSEWHERE: dict[tuple[str, str], tuple[str, ...]] = {
    ("README.md", "make demo"): (*_MAKE, "tests/cli/test_cli_demo.py"),
    ("README.md", "pip install"): (*_PIP, *_SERVE, "tests/docs/conftest.py::stack"),
    ("docs/quickstart.md", "make setup"): _MAKE,
    ("docs/quickstart.md", "RETIRE_HISTORY="): (*_SERVE, "tests/docs/conftest.py::stack"),
    ("docs/http-api.md", "retire serve"): (
        *_SERVE,
        "tests/cli/test_cli_authentication.py::test_serve_hands_authentication_to_both_children",
    ),
    ("docs/agents.md", '--8<-- "examples/langgraph_double_texting.py"'): (
        f"{_EXAMPLES}::test_the_second_text_supersedes_the_first_answer",
    ),
    ("docs/agents.md", '--8<-- "examples/coding_agent_headers.py"'): (
        f"{_EXAMPLES}::test_a_new_task_ends_the_agent_and_its_sub_agent",
    ),
    ("docs/kubernetes.md", ""): (
        "tests/e2e/test_e2e_walkthrough.py::test_every_command_of_the_page",
        *_CHART,
    ),
    ("docs/security.md", ""): (
        "tests/chart/test_chart_security_page.py::test_every_command_of_the_page",
        *_CHART,
    ),
    ("docs/vllm-versions.md", "pip install"): _PIP,
}


@dataclass(frozen=True, slots=True)
class Snippet:
    """One fenced block."""

    page: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def elsewhere(self) -> tuple[str, str] | None:
        """Its row of ELSEWHERE."""
        found = [k for k in ELSEWHERE if k[0] == self.page and self.text.startswith(k[1])]
        return found[0] if found else None


def snippets_of(page: str, text: str) -> list[Snippet]:
    """The blocks of one page, in order."""
    return [
        Snippet(page, text.count("\n", 0, m.start()) + 1, m["language"], m["text"])
        for m in _FENCE.finditer(text)
    ]


def pages() -> list[Path]:
    """README and everything below docs/ that was written by hand."""
    found = [path for path in (ROOT / "docs").rglob("*.md") if GENERATED not in path.parents]
    return [ROOT / "README.md", *sorted(found)]


def snippets() -> list[Snippet]:
    """All of them."""
    return [
        one
        for path in pages()
        for one in snippets_of(path.relative_to(ROOT).as_posix(), path.read_text())
    ]


def runnable(page: str) -> list[Snippet]:
    """What this folder executes of a page."""
    return [
        one
        for one in snippets()
        if one.page == page and one.language in ("sh", "bash", "python") and not one.elsewhere
    ]


def uncovered(found: Iterable[Snippet]) -> list[str]:
    """Snippets that nobody executes; a language that no rule knows is one too."""
    return [
        f"{one.place} ({one.language or 'no language'})"
        for one in found
        if not one.elsewhere
        and one.language not in SHOWN
        and not (one.page in RUN and one.language in ("sh", "bash", "python"))
    ]
