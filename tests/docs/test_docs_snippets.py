"""Every snippet is executed by somebody, and who that is exists."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import typer
from docs_snippets import ELSEWHERE, ROOT, RUN, Snippet, snippets, snippets_of, uncovered

from retire.cli.app import app

_MAKE = re.compile(r"\bmake ([a-z][a-z0-9-]*)")
_PIP = re.compile(r"retire\[([a-z,]+)\]")
NO_TARGETS = {"it", "sure", "use", "that", "the"}


def test_every_snippet_is_executed() -> None:
    """By this folder or by a test that is named; every row of the table is of a snippet."""
    found = snippets()
    assert len(found) > 30
    assert uncovered(found) == []
    used = {one.elsewhere for one in found}
    assert [row for row in ELSEWHERE if row not in used] == []
    assert {one.page for one in found if not one.elsewhere} >= set(RUN)


@pytest.mark.parametrize("page", ["docs/agents.md", "docs/new.md"])
@pytest.mark.parametrize("language", ["json", "ruby", ""])
def test_a_snippet_that_nobody_executes_would_be_seen(page: str, language: str) -> None:
    """Control: in a page that is run, and in one that nobody knows."""
    planted = snippets_of(page, f"# New\n\n```{language}\necho\n```\n")
    assert uncovered(planted) == [f"{page}:3 ({language or 'no language'})"]


def test_a_command_on_a_page_that_is_not_run_would_be_seen() -> None:
    """Control: a shell snippet of a page that neither RUN nor the table names."""
    assert uncovered(snippets_of("docs/new.md", "```sh\ntrue\n```\n")) == ["docs/new.md:1 (sh)"]


def missing(names: tuple[str, ...]) -> list[str]:
    """Of ``path`` or ``path::function``, what does not exist."""
    gone = []
    for name in names:
        path, _, function = name.partition("::")
        file = ROOT / path
        if not file.is_file() or (function and f"def {function}(" not in file.read_text()):
            gone.append(name)
    return gone


def test_every_test_that_is_named_exists() -> None:
    """A renamed test must not leave a snippet behind. Control: two that do not exist."""
    assert missing(tuple(name for names in ELSEWHERE.values() for name in names)) == []
    absent = ("tests/docs/test_docs_snippets.py::test_none", "tests/docs/gone.py")
    assert missing(absent) == list(absent)


def serve_lines(found: list[Snippet]) -> list[list[str]]:
    """Arguments of every ``retire serve`` of a snippet."""
    lines = [
        line
        for one in found
        if one.language in ("sh", "bash")
        for line in one.text.replace("\\\n", " ").splitlines()
        if "retire serve" in line
    ]
    return [shlex.split(line, comments=True) for line in lines]


def understood(words: list[str]) -> dict[str, object]:
    """What `retire serve` makes of its arguments; an error where it refuses them."""
    arguments = words[words.index("retire") + 2 :]
    command = typer.main.get_command(app)
    serve = command.get_command(typer.Context(command), "serve")  # type: ignore[attr-defined]
    return serve.make_context("serve", arguments).params


def test_every_serve_line_is_understood() -> None:
    """Its options exist; a stack with them is started by this folder's fixture."""
    found = serve_lines(snippets())
    assert len(found) >= 3
    assert all(understood(line)["model"] for line in found)


def test_a_serve_line_with_an_unknown_option_would_be_seen() -> None:
    """Control."""
    with pytest.raises(Exception, match="No such option: --none"):
        understood(["retire", "serve", "--model", "m", "--none"])


def targets(text: str) -> set[str]:
    """Every `make` target that a text names as a command."""
    return set(_MAKE.findall(text)) - NO_TARGETS


def undone(target: str) -> bool:
    """Make does not know how to make it."""
    command = ["make", "--no-print-directory", "-n", target]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode != 0


def test_every_make_target_exists() -> None:
    """Those in code of README and pages, inline or fenced. Control: one that does not."""
    text = "\n".join(_code(path) for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    named = targets(text)
    assert {"demo", "setup", "docs"} <= named
    assert [target for target in sorted(named) if undone(target)] == []
    assert undone("no-such-target")


def _code(path: Path) -> str:
    text = path.read_text()
    fenced = "\n".join(one.text for one in snippets_of(path.name, text))
    return fenced + "\n".join(re.findall(r"`(make [^`]+)`", text))


def extras(text: str) -> set[str]:
    """The extras of `retire` that a text asks pip for."""
    return {extra for found in _PIP.findall(text) for extra in found.split(",")}


def test_every_pip_line_names_extras_that_exist() -> None:
    """`pip install 'retire[cpu]'` must not promise an extra that the package does not have."""
    project = tomllib.loads((ROOT / "node" / "pyproject.toml").read_text())["project"]
    named = {extra for one in snippets() for extra in extras(one.text)}
    assert {"cpu", "cuda", "cli"} <= named
    assert named <= set(project["optional-dependencies"])
    assert extras("pip install 'retire[none]'") == {"none"}
