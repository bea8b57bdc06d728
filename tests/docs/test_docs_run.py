"""Every page that can be, is run: all of its commands, then all of its Python, on a real stack."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs_session import Reader, SnippetFailed
from docs_snippets import RUN, Snippet, runnable

START_S = 480  # the first test waits for the stack
pytestmark = [pytest.mark.stack, pytest.mark.timeout(START_S)]


@pytest.mark.parametrize("page", RUN)
def test_every_snippet_of_the_page_runs(reader: Reader, page: str) -> None:
    """Each ends well, in order."""
    found = runnable(page)
    assert found
    shell = [one for one in found if one.language in ("sh", "bash")]
    printed = reader.shell(shell) if shell else ""
    program = [one for one in found if one.language == "python"]
    printed += reader.python(program) if program else ""
    print(printed)
    assert "Traceback" not in printed


@pytest.mark.parametrize(
    ("language", "text"),
    [("sh", "echo before\nfalse\necho after"), ("python", "print('before')\n1 / 0")],
)
def test_a_snippet_that_fails_would_be_seen(reader: Reader, language: str, text: str) -> None:
    """Control: what came before it is shown, what comes after it is not run."""
    bad = [Snippet("planted.md", 1, language, text)]
    with pytest.raises(SnippetFailed, match="before") as raised:
        reader.shell(bad) if language == "sh" else reader.python(bad)
    assert "\nafter" not in str(raised.value)


def test_the_quickstart_ends_with_a_verdict(reader: Reader, tmp_path: Path) -> None:
    """The history of this stack, judged by the quickstart's last command, holds every rule."""
    last = [one for one in runnable("docs/quickstart.md") if "retire check" in one.text]
    assert "every rule holds" in reader.shell(last)
