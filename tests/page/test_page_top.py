"""``retire top`` on a real node: as a command, once, and live in a terminal of its own."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time

import pytest
from page_world import World

from retire.cli.top_view import STAGES, bar, name
from retire.protocol.versions import ScopeKey

MARKED = "plan-[red]x[/red]"
GLYPHS = {stage: glyph for stage, glyph, _ in STAGES}


@pytest.fixture(scope="module")
def told(world: World) -> World:
    world.supersede(ScopeKey("acme", "plan-7"))
    world.supersede(ScopeKey("globex", MARKED))
    world.gates[0].pinned["plan-7"] = 448
    return world


def top(*arguments: str, width: int = 140) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "retire.cli", "top", *arguments]
    env = {**os.environ, "COLUMNS": str(width), "NO_COLOR": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, env=env, timeout=120, check=False
    )


def test_once_shows_what_the_page_shows(told: World):
    """Versions, times, what was inherited, pins and quota; markup in a name is text."""
    done = top("--once", "--page", told.url)
    assert done.returncode == 0, done.stderr
    for said in ("node-a", "ready", "plan-7", "1.0 > 1.1", "7168", "448", "2048", "current"):
        assert said in done.stdout
    assert MARKED in done.stdout
    assert "\x1b" not in done.stdout


def test_one_tenant(told: World):
    """As on the page, a tenant may be chosen where nobody is asked for a token."""
    assert "plan-7" not in top("--once", "--page", told.url, "--tenant", "globex").stdout


def test_where_nobody_answers_it_says_so():
    """One line, exit 1; another server is no live page."""
    done = top("--once", "--page", "http://127.0.0.1:1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("retire: no live page at http://127.0.0.1:1")


def test_live_it_draws_again(told: World):
    """In a terminal: a scope that is opened meanwhile appears by itself."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "retire.cli", "top", "--page", told.url, "--every", "0.2"]
    env = {**os.environ, "COLUMNS": "120", "LINES": "60", "TERM": "xterm-256color"}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs, env=env) as process:
        os.close(theirs)
        until(ours, "plan-7")
        told.join(ScopeKey("acme", "opened-later"))
        until(ours, "opened-later")
        process.terminate()
        process.wait(60)
    os.close(ours)


def until(terminal: int, text: str) -> None:
    """Read until it was drawn."""
    end, seen = time.monotonic() + 60, ""
    while text not in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen):
        assert time.monotonic() < end, seen[-2000:]
        if select.select([terminal], [], [], 1)[0]:
            seen += os.read(terminal, 65536).decode("utf-8", "replace")


def test_names_cannot_move_the_cursor():
    """A node says only printable names; whatever else answers there may not."""
    shown = name("plan\x1b[2J\x07\r[red]x").plain
    assert shown == "plan\N{REPLACEMENT CHARACTER}[2J" + 2 * "\N{REPLACEMENT CHARACTER}" + "[red]x"


def test_bars_are_to_scale():
    """Each stage has the cells of its milliseconds; on a longer scale fewer."""
    stages = {"commit": 10.0, "unpublishable": 20.0, "fence": 40.0, "align": 50.0, "resume": 80.0}
    drawn = bar(stages, 80.0, cells=80).plain
    counts = {stage: drawn.count(glyph) for stage, glyph in GLYPHS.items()}
    assert counts == {"commit": 10, "unpublishable": 10, "fence": 19, "align": 10, "resume": 30}
    assert drawn.index("|") == 20
    assert len(bar(stages, 160.0, cells=80).plain) == 40
    assert bar({}, 0.0).plain == ""
