"""The demo's verdict: report.json, and whether every promise was kept. Pure but for one write."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from retire.cli.demo.stories import Arm
from retire.protocol.codec import receipt_to_dict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from retire.cli.demo.stories import Telling


def failures(tellings: Sequence[Telling]) -> list[str]:
    """Every broken promise, in words."""
    found = []
    for told in tellings:
        where = f"{told.story}, {told.arm.value}"
        found += [f"{where}: {problem}" for problem in told.problems]
        if told.arm is Arm.RETIRE and told.late_tokens:
            found.append(f"{where}: {told.late_tokens} late tokens")
    return found


def report(tellings: Sequence[Telling]) -> dict[str, Any]:
    """The content of report.json."""
    broken = failures(tellings)
    return {"runs": [_run(told) for told in tellings], "failures": broken, "ok": not broken}


def write(path: Path, body: dict[str, Any]) -> None:
    """Write it."""
    path.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")


def _run(told: Telling) -> dict[str, Any]:
    return {
        "story": told.story,
        "arm": told.arm.name.lower(),
        "late_tokens": told.late_tokens,
        "refused_tokens": told.refused_tokens,
        "inherited_tokens": told.inherited_tokens,
        "prompt_tokens": told.prompt_tokens,
        "successor_ttft_ms": round(told.ttft_ms, 1),
        "stages_ms": {name: round(ms, 2) for name, ms in told.stages_ms.items()},
        "text": told.text,
        "receipt": receipt_to_dict(told.receipt) if told.receipt else None,
    }
