"""A vLLM that Retire cannot fence is refused at start, by the name of the symbol."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

DOCTORED = {
    "renamed parameter": (
        "from vllm.v1.core.sched.scheduler import Scheduler as target\n"
        "def schedule(self, budget): ...\n"
        "target.schedule = schedule\n",
        "vllm.v1.core.sched.scheduler.Scheduler.schedule takes ('self', 'budget')",
    ),
    "missing method": (
        "from vllm.v1.core.block_pool import BlockPool\ndel BlockPool.touch\n",
        "vllm.v1.core.block_pool.BlockPool.touch is missing",
    ),
    "other release": (
        "import vllm\nvllm.__version__ = '0.27.1'\n",
        "vLLM 0.27.1 is not supported; install one of 0.26.0",
    ),
}


@pytest.mark.parametrize("what", DOCTORED)
def test_a_doctored_vllm_is_refused_by_name(what: str, tmp_path: Path) -> None:
    """register() ends the process and names the symbol; vLLM's plugin loader cannot swallow it."""
    doctor, message = DOCTORED[what]
    code = f"{doctor}from vllm.plugins import load_general_plugins\nload_general_plugins()\n"
    result = _python(code, RETIRE_MAILBOX=str(tmp_path / "mailbox"))
    assert result.returncode == 1
    assert f"retire: refusing to serve: {message}" in result.stderr


def test_an_intact_vllm_is_accepted_and_every_seam_opened(tmp_path: Path) -> None:
    """NEGATIVE CONTROL: without the doctor the same start goes through."""
    code = (
        "from vllm.plugins import load_general_plugins\nload_general_plugins()\n"
        "from vllm.v1.engine.core import EngineCore\nassert EngineCore.retire_fence\n"
        "from vllm.config.scheduler import SchedulerConfig\n"
        "assert SchedulerConfig.get_scheduler_cls.retire\n"
    )
    assert _python(code, RETIRE_MAILBOX=str(tmp_path / "mailbox")).returncode == 0


@pytest.mark.parametrize("ahead", [True, False])
def test_asynchronous_scheduling_stays_what_it_is(tmp_path: Path, ahead: bool) -> None:
    """Unset, the class fits. CONTROL: the other one, which would wait for every step, does not."""
    fit, unfit = ("RetireAsyncScheduler", "RetireScheduler")[:: 1 if ahead else -1]
    code = f"""
from vllm.plugins import load_general_plugins
load_general_plugins()
from vllm.config.scheduler import SchedulerConfig
def chosen(**given):
    config = SchedulerConfig.default_factory(async_scheduling={ahead}, **given)
    return config.get_scheduler_cls().__name__
assert chosen() == chosen(scheduler_cls="retire.engine.seams.scheduler.{fit}") == "{fit}"
chosen(scheduler_cls="retire.engine.seams.scheduler.{unfit}")
"""
    result = _python(code, RETIRE_MAILBOX=str(tmp_path / "mailbox"))
    assert result.returncode == 1
    assert f"scheduler_cls {unfit} does not fit async_scheduling={ahead}" in result.stderr
    assert f"subclass retire.engine.seams.scheduler.{fit}" in result.stderr


def test_without_a_mailbox_vllm_stays_as_it_is() -> None:
    """An installed but unconfigured plugin opens nothing."""
    code = (
        "from vllm.plugins import load_general_plugins\nload_general_plugins()\n"
        "from vllm.v1.engine.core import EngineCore\n"
        "assert not hasattr(EngineCore, 'retire_fence')\n"
    )
    assert _python(code).returncode == 0


def test_the_server_itself_refuses_to_start(tmp_path: Path) -> None:
    """The real API server with a doctored vLLM exits with the message instead of serving."""
    doctor, message = DOCTORED["renamed parameter"]
    code = (
        f"{doctor}import runpy, sys\n"
        "sys.argv = ['api_server', '--model', 'nowhere', '--port', '0']\n"
        "runpy.run_module('vllm.entrypoints.openai.api_server', run_name='__main__')\n"
    )
    result = _python(code, RETIRE_MAILBOX=str(tmp_path / "mailbox"))
    assert result.returncode == 1
    assert message in result.stderr


def _python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    plain = {k: v for k, v in os.environ.items() if not k.startswith("RETIRE_")}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**plain, "VLLM_PLUGINS": "retire,retire_api", "VLLM_LOGGING_LEVEL": "ERROR", **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
