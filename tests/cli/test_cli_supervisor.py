"""The supervisor with tiny real processes: order, restarts, ends, and nothing left behind."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from retire.cli.stack.supervisor import ChildFailed, ChildSpec, OnExit, Supervisor

CHILD = """
import os, signal, subprocess, sys, time
folder, name, mode = sys.argv[1:4]
if "stubborn" in mode:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "grandchild" in mode:
    subprocess.Popen([sys.executable, "-S", "-c",
        "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(99)", folder],
        start_new_session="detached" in mode)
with open(f"{folder}/{name}", "a") as ready:
    ready.write(f"{os.getpid()}\\n")
print(f"{name} says hello", flush=True)
if "exit" in mode:
    print("about to fail", flush=True)
    sys.exit(7)
time.sleep(99)
"""


def spec(folder: Path, name: str, mode: str = "", **changes) -> ChildSpec:
    """A child that is ready once it has written its pid."""

    async def ready() -> bool:
        return (folder / name).exists()

    argv = (sys.executable, "-S", "-c", CHILD, str(folder), name, mode)
    return ChildSpec(name, argv, ready, **{"grace_s": 0.3, **changes})


def starts(folder: Path, name: str) -> list[int]:
    """Pids of every start of a child."""
    path = folder / name
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def left(folder: Path) -> list[str]:
    """Command lines of living processes (no zombies) that name ``folder``."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes().decode().replace("\0", " ")
        except (OSError, ValueError):
            continue
        if str(folder) in line:
            found.append(line)
    return found


async def until(true, timeout_s: float = 5.0) -> None:
    """Wait for a fact; fails the test when it does not come."""
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "timed out"
        await asyncio.sleep(0.02)


async def test_children_start_in_order_and_stop_in_reverse(tmp_path) -> None:
    """Each is ready before the next starts; after stop none is left; lines carry their name."""
    lines: list[tuple[str, str]] = []
    order: list[str] = []
    supervisor = Supervisor(
        [spec(tmp_path, "a"), spec(tmp_path, "b")], lambda *line: lines.append(line)
    )
    await supervisor.start(order.append)
    assert order == ["a", "b"]
    assert set(supervisor.pids()) == {"a", "b"}
    await until(lambda: ("b", "b says hello") in lines)
    assert ("a", "a says hello") in lines
    await supervisor.stop()
    assert left(tmp_path) == []


async def test_a_crashed_child_is_started_again_and_others_stay(tmp_path) -> None:
    """kill -9 of one: a new process of it, the same one of the other, and a line that says so."""
    lines: list[tuple[str, str]] = []
    supervisor = Supervisor(
        [spec(tmp_path, "a"), spec(tmp_path, "b")], lambda *line: lines.append(line)
    )
    await supervisor.start()
    os.kill(starts(tmp_path, "a")[0], signal.SIGKILL)
    await until(lambda: len(starts(tmp_path, "a")) == 2)
    assert len(starts(tmp_path, "b")) == 1
    assert ("retire", "a was ended by signal 9; again in 0.2 s") in lines
    await until(lambda: ("retire", "a is back") in lines)
    await supervisor.stop()
    assert left(tmp_path) == []


async def test_the_end_of_a_vital_child_ends_wait_with_its_last_lines(tmp_path) -> None:
    """The engine's crash is the stack's: status and tail are reported, nothing is restarted."""
    supervisor = Supervisor(
        [spec(tmp_path, "a"), spec(tmp_path, "engine", "exit", on_exit=OnExit.STOP_ALL)],
        lambda *line: None,
    )
    with pytest.raises(ChildFailed) as failed:
        await supervisor.start()
        await asyncio.wait_for(supervisor.wait(), 5)
    await supervisor.stop()
    assert (failed.value.name, failed.value.code) == ("engine", 7)
    assert list(failed.value.tail) == ["engine says hello", "about to fail"]
    assert len(starts(tmp_path, "engine")) == 1
    assert left(tmp_path) == []


async def test_a_child_that_never_starts_is_given_up(tmp_path) -> None:
    """A part that dies before it was ever ready is tried three times, not for ever."""

    async def never() -> bool:
        return False

    argv = (sys.executable, "-S", "-c", "print('no such setting'); raise SystemExit(2)")
    supervisor = Supervisor([ChildSpec("sidecar", argv, never)], lambda *line: None)
    with pytest.raises(ChildFailed, match="sidecar ended with exit status 2") as failed:
        await supervisor.start()
    await supervisor.stop()
    assert "no such setting" in failed.value.tail


async def test_a_command_that_does_not_exist_says_so(tmp_path) -> None:
    """The reason stands in the tail."""

    async def never() -> bool:
        return False

    supervisor = Supervisor(
        [ChildSpec("engine", ("/no/such/program",), never, on_exit=OnExit.STOP_ALL)],
        lambda *line: None,
    )
    with pytest.raises(ChildFailed) as failed:
        await supervisor.start()
    await supervisor.stop()
    assert failed.value.code == 127
    assert "cannot start /no/such/program: No such file or directory" in failed.value.tail


async def test_a_child_that_is_never_ready_times_out(tmp_path) -> None:
    """Alive is not ready: the wait is bounded."""

    async def never() -> bool:
        return False

    argv = (sys.executable, "-S", "-c", "import time; time.sleep(99)")
    late = ChildSpec("engine", argv, never, ready_timeout_s=0.3, grace_s=0.3)
    supervisor = Supervisor([late], lambda *line: None)
    with pytest.raises(ChildFailed, match="not ready within 0.3 s"):
        await supervisor.start()
    await supervisor.stop()


@pytest.mark.parametrize("mode", ["stubborn", "grandchild", "stubborn grandchild detached"])
async def test_stop_leaves_nothing(tmp_path, mode) -> None:
    """Children that ignore TERM, and children of children in sessions of their own, end too."""
    supervisor = Supervisor([spec(tmp_path, "a", mode)], lambda *line: None)
    await supervisor.start()
    assert len(left(tmp_path)) >= (3 if "grandchild" in mode else 2)
    start_s = time.monotonic()
    await supervisor.stop()
    assert time.monotonic() - start_s < 3.0
    assert left(tmp_path) == []


async def test_a_stop_while_starting_ends_start(tmp_path) -> None:
    """Ctrl-C during a long start does not wait for readiness."""

    async def never() -> bool:
        return False

    argv = (sys.executable, "-S", "-c", "import time; time.sleep(99)")
    supervisor = Supervisor([ChildSpec("engine", argv, never, grace_s=0.3)], lambda *line: None)
    starting = asyncio.create_task(supervisor.start())
    await asyncio.sleep(0.2)
    supervisor.request_stop()
    await asyncio.wait_for(starting, 2)
    await supervisor.stop()
    assert supervisor.pids() == {}


RUNNER = """
import asyncio, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_cli_supervisor import Supervisor, spec
async def main():
    folder = Path(sys.argv[1])
    specs = [spec(folder, "a", "stubborn grandchild detached"), spec(folder, "b")]
    stack = Supervisor(specs, print)
    await stack.start()
    print("READY", flush=True)
    await asyncio.sleep(99)
asyncio.run(main())
"""


def test_nothing_outlives_a_killed_supervisor(tmp_path) -> None:
    """kill -9 of the supervisor itself: children and their detached children end by themselves."""
    code = RUNNER.format(tests=str(Path(__file__).parent))
    runner = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert runner.stdout is not None
    with runner.stdout:
        while "READY" not in runner.stdout.readline():
            assert runner.poll() is None
    assert len(left(tmp_path)) >= 5
    runner.kill()
    runner.wait()
    deadline = time.monotonic() + 5
    while left(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left(tmp_path) == []


def test_without_the_guard_it_would(tmp_path) -> None:
    """Negative control: the same child, started plainly by a process that is killed, lives on."""
    code = (
        "import subprocess, sys, time;"
        "subprocess.Popen([sys.executable, '-S', '-c', *sys.argv[1:]]); time.sleep(99)"
    )
    runner = subprocess.Popen([sys.executable, "-c", code, CHILD, str(tmp_path), "a", ""])
    while not starts(tmp_path, "a"):
        time.sleep(0.02)
    runner.kill()
    runner.wait()
    time.sleep(0.5)
    (child,) = starts(tmp_path, "a")
    os.kill(child, 0)  # still there
    os.kill(child, signal.SIGKILL)
