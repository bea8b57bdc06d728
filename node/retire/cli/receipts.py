"""A receipt for people: what was retired, how fast, what the successor inherits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from retire.protocol.contract import Receipt


def show(receipt: Receipt, console: Console | None = None) -> None:
    """Print it as a small table."""
    table = Table(box=None, show_header=False, padding=(0, 1))
    table.add_column(style="dim")
    table.add_column()
    for name, value in rows(receipt):
        table.add_row(name, value)
    (console or Console()).print(table)


def rows(receipt: Receipt) -> list[tuple[str, str]]:
    """(name, value) pairs, only those that say something."""
    found = [
        ("scope", f"{receipt.key}  {receipt.from_version} -> {receipt.to_version}"),
        ("stages", "  ".join(f"{stage} {ms:.2f} ms" for stage, ms in receipt.stages_ms.items())),
        ("gates", "  ".join(f"{gate.gate} {gate.outcome.value}" for gate in receipt.gates)),
        ("inherited", _inherited(receipt)),
    ]
    if receipt.residual_ms is not None:
        how = f", {receipt.fence.branch.value}" if receipt.fence else ""
        found.append(("residual", f"{receipt.residual_ms:.1f} ms of old work after COMMIT{how}"))
    for request in receipt.requests:
        last = request.last_published_index
        said = "nothing published" if last is None else f"last published index {last}"
        found.append(("retired", f"{request.request_id} in {request.state}, {said}"))
    if receipt.pin is not None:
        pin = receipt.pin
        found.append(("pin", f"{pin.blocks} blocks in {pin.tier.value} for {pin.expires_s:.0f} s"))
    if receipt.error is not None:
        found.append(("error", str(receipt.error.get("message", receipt.error))))
    return [(name, value) for name, value in found if value]


def _inherited(receipt: Receipt) -> str:
    if receipt.stop_reason is None:
        return f"no successor yet; frontier {receipt.frontier_tokens} tokens"
    return (
        f"{receipt.certified_tokens} of {receipt.inheritable_tokens} common tokens "
        f"(stopped by {receipt.stop_reason.value})"
    )
