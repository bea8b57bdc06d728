"""`kubectl retire`, found by kubectl on the PATH, on a real installation."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from e2e_plans import Plan, superseded
from e2e_records import commits

from e2e.binaries import binary
from e2e.cluster import CommandFailed, run
from retire.protocol.events import Change

if TYPE_CHECKING:
    from e2e.deployment import Deployment

PROMPT = "Compare the two designs and choose one. " * 8


def _retire(plan: Plan, *arguments: str) -> str:
    """kubectl retire ..., as a person types it."""
    env = plan.deployment.cluster.env
    path = os.pathsep.join([str(Path(sys.executable).parent), env["PATH"]])
    argv = [str(binary("kubectl")), "retire", "-n", plan.tenant, *arguments]
    return run(argv, env={**env, "PATH": path, "COLUMNS": "160"}, limit_s=180)


def _json(plan: Plan, *arguments: str) -> Any:
    return json.loads(_retire(plan, *arguments, "-o", "json"))


@pytest.fixture
def plan(deployment: Deployment, tenant: str) -> Plan:
    """A scope at 1.0."""
    return Plan(deployment, tenant).opened()


def test_supersede_waits_for_the_receipt(plan: Plan) -> None:
    """The stream has ended when it returns; the receipt is printed, the context computed."""
    flow = plan.runs(PROMPT)
    found = _json(plan, "supersede", plan.name, "--wait", "--prompt", PROMPT + "Now.")
    superseded(flow, "1.1")
    assert (found["version"], found["receipt"]["toVersion"]) == ("1.1", "1.1")
    assert found["receipt"]["retiredRequests"] == 1
    assert plan.condition("SuccessorAdmitted", "True", "Warmed")
    assert "1.1 -> 1.2" in _retire(plan, "supersede", plan.name).replace("→", "->")
    assert commits(plan) == ["1.1", "1.2"]


def test_what_it_shows(plan: Plan) -> None:
    """describe, status, top and trace tell the same version."""
    trace = _json(plan, "supersede", plan.name)["receipt"]["traceId"]
    plan.has_event("Superseded")
    text = _retire(plan, "describe", plan.name)
    assert "1.1" in text and "RegistrySynced" in text and "Superseded" in text
    assert _json(plan, "status", plan.name)["status"]["version"] == "1.1"
    assert [one["metadata"]["name"] for one in _json(plan, "status")["items"]] == [plan.name]
    (row,) = _json(plan, "top")
    assert (row["tenant"], row["name"], row["version"]) == (plan.tenant, plan.name, "1.1")
    assert trace in _retire(plan, "trace", plan.name)
    assert plan.name in _retire(plan, "status") and plan.name in _retire(plan, "top")


def test_pause_resume_cancel(plan: Plan) -> None:
    """Each returns when it has come true; what does not exist is an error in one line."""
    assert _json(plan, "pause", plan.name)["phase"] == "Paused"
    assert _json(plan, "resume", plan.name)["phase"] == "Active"
    found = _json(plan, "cancel", plan.name)
    assert (found["phase"], found["receipt"]["kind"]) == ("Cancelled", "cancel")
    assert len(commits(plan, Change.CANCEL)) == 1
    with pytest.raises(CommandFailed, match=r"exit 1\nerror: .*'absent'"):
        _retire(plan, "supersede", "absent")
