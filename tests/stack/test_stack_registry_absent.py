"""A registry that cannot be reached when the stack starts: said before the model is loaded."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.stack import CLI
from bench.tiny_models import tiny_model
from retire.cli.stack.children import SIDECAR_READY_S
from retire.registry.embedded import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for Unix sockets."""
    made = Path(tempfile.mkdtemp(prefix="ra-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@contextlib.contextmanager
def serving(folder: Path, registry: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """``retire serve --registry ...`` and its log; ended in any case."""
    log = folder / "log"
    with log.open("wb") as out:
        argv = [*CLI, "serve", "--model", str(tiny_model()), "--port", "0"]
        argv += ["--state-dir", str(folder / "state"), "--registry", registry]
        process = subprocess.Popen(argv, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        try:
            yield process, log
        finally:
            process.terminate()
            process.wait(30)


def until_said(log: Path, text: str, timeout_s: float) -> None:
    """Wait for a line of the log."""
    deadline_s = time.monotonic() + timeout_s
    while text not in log.read_text():
        assert time.monotonic() < deadline_s, log.read_text()
        time.sleep(0.1)


def test_a_registry_that_stays_away_is_named_with_the_fix(folder: Path) -> None:
    """One line names the URL and the fix; retries, then an exit status, and no model was loaded."""
    with socket.socket() as probe:  # bound and not listening: refused for as long as this lasts
        probe.bind(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{probe.getsockname()[1]}"
        began_s = time.monotonic()
        with serving(folder, url) as (process, log):
            assert process.wait(SIDECAR_READY_S + 30) == 1
            took_s = time.monotonic() - began_s
        text = log.read_text()
    said = re.findall(r"waiting for the registry.*", text)
    assert len(set(said)) == 1, "once, not at every try"
    assert "start it, or correct its URL" in said[0] and f"registry at {url} " in said[0]
    assert "Connection refused" in said[0]
    assert took_s > SIDECAR_READY_S, "it retried until then"
    assert f"sidecar was not ready within {SIDECAR_READY_S:g} s; stopped everything" in text
    assert "starting engine" not in text


def test_a_registry_that_comes_late_is_found(folder: Path) -> None:
    """The same start goes on by itself once the registry is there."""
    server = EmbeddedServer(folder / "registry")
    with serving(folder, server.url) as (process, log):
        until_said(log, "waiting for the registry", 60)
        assert "starting engine" not in log.read_text()
        with server:
            until_said(log, "starting engine", SIDECAR_READY_S)
            assert process.poll() is None
            process.terminate()
            assert process.wait(30) == 0
    assert "stopped" in log.read_text()


def test_a_url_of_another_kind_is_refused_at_once(folder: Path) -> None:
    """No retries where none can help: the field and the form it must have."""
    with serving(folder, "http://127.0.0.1:1") as (process, log):
        assert process.wait(60) != 0
    text = log.read_text()
    assert "must be redis://, rediss:// or unix://; got 'http://127.0.0.1:1'" in text
    assert "starting engine" not in text
