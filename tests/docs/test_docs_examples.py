"""The examples of the documentation do on a real stack what their pages say."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from docs_session import Reader

    from bench.stack import Stack

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
pytestmark = [pytest.mark.stack, pytest.mark.timeout(480)]


def example(name: str) -> ModuleType:
    """The file, as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and LangGraph look up annotations there
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("default")  # LangGraph's own
async def test_the_second_text_supersedes_the_first_answer(stack: Stack) -> None:
    """The graph keeps what was seen, the second answer is complete, the receipt says from where."""
    first, second, receipt = await example("langgraph_double_texting").talk(stack.url)
    assert first["superseded"] and not second["superseded"]
    assert [m["role"] for m in first["messages"]] == ["user", "assistant"]
    assert [m["role"] for m in second["messages"]] == ["user", "user", "assistant"]
    assert first["messages"][-1]["content"] and second["messages"][-1]["content"]
    assert (receipt["from_version"], receipt["to_version"]) == ("1.0", "1.1")
    assert receipt["requests"][0]["last_published_index"] >= 4


@pytest.mark.filterwarnings("default")
def test_without_a_policy_both_answers_run(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: it is the header that ends the sub-agent and the old task."""
    module = example("coding_agent_headers")
    start = module.start

    def untold(openai, model, task, headers, *, most=200):
        told = {k: v for k, v in headers.items() if k != "x-retire-on-new-input"}
        return start(openai, model, task, told, most=most)

    monkeypatch.setattr(module, "start", untold)
    answers = module.work(stack.url)
    assert [answer.superseded_by for answer in answers.values()] == [None] * 3


@pytest.mark.filterwarnings("default")
def test_a_new_task_ends_the_agent_and_its_sub_agent(stack: Stack) -> None:
    """Both old streams end with the version that is current; the new task runs to its end."""
    answers = example("coding_agent_headers").work(stack.url)
    new, old, sub = (answers[name] for name in ("new task", "old task", "sub-agent"))
    assert set(new.versions) == {"1.1"} and new.superseded_by is None
    assert set(old.versions) == {"1.0"} and old.superseded_by == "1.1"
    assert set(sub.versions) == {"1.0"} and sub.superseded_by == "1.1"


@pytest.mark.parametrize("name", ["langgraph_double_texting", "coding_agent_headers"])
def test_each_runs_as_a_program(reader: Reader, stack: Stack, name: str) -> None:
    """As its docstring says."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), stack.url],
        env=reader.environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "superseded" in done.stdout
