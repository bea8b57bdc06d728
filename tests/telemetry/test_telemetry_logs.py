"""Logs: one line a record in either form, quiet unless asked; each stage with its authority."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from retire.cli.stack.output import JsonSink
from retire.protocol.errors import InvalidField
from retire.telemetry import logs, names

if TYPE_CHECKING:
    from telemetry_story import Story

    from bench.stack import Stack

STAGES = ("advance", "unpublishable", "fence", "align", "resume", "reclaim")


@pytest.fixture
def screen() -> Iterator[io.StringIO]:
    """Where ``retire.*`` logs; afterwards as before."""
    logger = logging.getLogger(names.LOGGER)
    before = logger.handlers[:], logger.level, logger.propagate
    yield io.StringIO()
    logger.handlers[:], level, logger.propagate = before
    logger.setLevel(level)


def test_a_record_is_one_line(screen: io.StringIO) -> None:
    """Whatever is in it: plain with quoted fields, or one JSON object."""
    log = logging.getLogger("retire.sidecar")
    told = logs.fields(scope="a b\nlevel=error", ms=1.5, missing=None)
    for log_format in logs.FORMATS:
        logs.setup(log_format, stream=screen, level=logging.INFO)
        log.info("lease\nheld", extra=told)
    plain, body = screen.getvalue().splitlines()
    assert re.fullmatch(
        r'[\d:.]{12} INFO sidecar: lease\\nheld scope="a b\\nlevel=error" .*', plain
    )
    record = json.loads(body)
    assert (record["logger"], record["level"], record["ms"]) == ("retire.sidecar", "info", 1.5)
    assert record["scope"] == "a b\nlevel=error" and record["missing"] is None


def test_the_default_is_quiet(screen: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages are told at debug only; what starts, stops and fails always is."""
    stages, node = logging.getLogger(names.LOGGER_STAGES), logging.getLogger("retire.sidecar")
    for level, told in ((None, ["ready"]), ("debug", ["ready", "commit"]), ("warning", [])):
        monkeypatch.delenv(names.LOG_LEVEL_ENV, raising=False)
        if level is not None:
            monkeypatch.setenv(names.LOG_LEVEL_ENV, level)
        screen.truncate(0)
        logs.setup("json", stream=screen)
        node.info("ready")
        stages.debug("commit")
        lines = screen.getvalue().lstrip("\0").splitlines()
        assert [json.loads(line)["message"] for line in lines] == told


def test_vllm_s_process_is_left_alone_unless_asked(screen: io.StringIO) -> None:
    """Without our variables its logging is its own."""
    logger = logging.getLogger(names.LOGGER)
    logger.handlers[:] = []
    logs.setup_from_env({})
    assert logger.handlers == []
    logs.setup_from_env({names.LOG_FORMAT_ENV: "json"})
    assert len(logger.handlers) == 1


def test_lines_of_a_stack_are_nested_not_quoted() -> None:
    """A child's JSON, vLLM's name of its process before it or not; what is none stays a message."""
    screen = io.StringIO()
    sink = JsonSink(screen)
    for line in ('{"a":1}', '(APIServer pid=7) {"a":1}', "(APIServer pid=7) up", "[1]"):
        sink("engine", line)
    told = [json.loads(line) for line in screen.getvalue().splitlines()]
    assert [one.get("record") for one in told] == [{"a": 1}, {"a": 1}, None, None]
    assert told[1]["process"] == "APIServer pid=7"
    assert [one.get("message") for one in told[2:]] == ["(APIServer pid=7) up", "[1]"]
    assert {one["source"] for one in told} == {"engine"}


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: logs.level_of({names.LOG_LEVEL_ENV: "loud"}), names.LOG_LEVEL_ENV),
        (lambda: logs.setup_from_env({names.LOG_FORMAT_ENV: "xml"}), names.LOG_FORMAT_ENV),
        (lambda: logs.format_of(["--log-format", "xml"], "plain"), "--log-format"),
        (lambda: logs.format_of(["--log-format"], "plain"), "--log-format"),
    ],
)
def test_nonsense_is_refused_by_name(call: Any, field: str) -> None:
    """The message names the field and what may stand there."""
    with pytest.raises(InvalidField, match="one of") as refused:
        call()
    assert field in str(refused.value)
    assert logs.format_of(["--log-format=json"], "plain") == "json"
    assert logs.format_of([], "plain") == "plain"


@pytest.mark.stack
@pytest.mark.timeout(600)
def test_each_stage_is_told_once_with_its_authority(story: Story, stack: Stack) -> None:
    """Of one SUPERSEDE on the real stack: six events, tenant, scope, version and trace in each."""
    told: dict[str, list[dict[str, Any]]] = {}
    for line in stack.log():
        record = json.loads(line).get("record", {})
        mine = record.get("logger") == names.LOGGER_STAGES and record["scope"] == story.agent.scope
        if mine:
            told.setdefault(record["stage"], []).append(record)
    assert {stage: len(records) for stage, records in told.items()} == dict.fromkeys(STAGES, 1)
    for (record,) in told.values():
        assert record["tenant"] == story.agent.tenant
        assert record["version"] == story.receipt["to_version"]
        assert record["trace_id"] == story.receipt["trace_id"]
    times = [told[stage][0]["time"] for stage in ("advance", "unpublishable", "fence", "reclaim")]
    assert times == sorted(times)
