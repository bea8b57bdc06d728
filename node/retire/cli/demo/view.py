"""The stories side by side on a terminal. Must never measure anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.table import Table
from rich.text import Text

from retire.cli.demo.stories import STORIES, Arm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from retire.cli.demo.stories import Telling

BAR_MAX: Final = 46  # characters of the longest bar
BESIDE: Final = 69  # characters of the other columns
COLORS: Final = {
    "commit": "magenta",
    "unpublishable": "bright_magenta",
    "fence": "yellow",
    "align": "cyan",
    "resume": "bright_cyan",
    "hang up": "yellow",
    "first token": "green",
}


def show(tellings: Sequence[Telling], console: Console) -> None:
    """One table a story, and each arm's stages by name and time."""
    for story in STORIES:
        told = [telling for telling in tellings if telling.story == story.name]
        if told:
            console.print()
            console.print(f"[bold]{story.name}[/]: {story.title}")
            console.print(f"  [dim]was: {story.task}\n  now: {story.revised}[/]")
            console.print(_table(told, max(8, min(BAR_MAX, console.width - BESIDE))))
            for telling in told:
                console.print(_stages(telling))


def _table(told: Sequence[Telling], width: int) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for title in ("", "late tokens", "inherited", "first token"):
        table.add_column(title, justify="right" if title else "left", no_wrap=True)
    table.add_column("time went", no_wrap=True)
    longest = max(telling.ttft_ms for telling in told)
    for telling in told:
        table.add_row(
            Text(telling.arm.value, style="bold" if telling.arm is Arm.RETIRE else ""),
            _late(telling),
            f"{telling.inherited_tokens} of {telling.prompt_tokens}",
            f"{telling.ttft_ms / 1e3:.2f} s",
            bar(telling, longest, width),
        )
    return table


def _stages(telling: Telling) -> Text:
    """When each stage ended; the colours are the bar's."""
    text = Text(f"  {telling.arm.value}:", style="dim", no_wrap=True, overflow="ellipsis")
    for name, ms in telling.stages_ms.items():
        text.append(" █", COLORS.get(name, "white"))
        text.append(f" {name} {ms:.0f}", "not dim")
    return text.append(" ms")


def _late(telling: Telling) -> Text:
    text = Text(str(telling.late_tokens), style="bold red" if telling.late_tokens else "bold green")
    if telling.refused_tokens:
        text.append(f" (+{telling.refused_tokens} refused)", "dim")
    return text


def bar(telling: Telling, longest_ms: float, width: int) -> Text:
    """Stages to scale; a stage too short for a character is not drawn."""
    text, drawn = Text(), 0
    for name, end_ms in telling.stages_ms.items():
        end = round(width * end_ms / longest_ms)
        text.append("█" * max(0, end - drawn), COLORS.get(name, "white"))
        drawn = max(drawn, end)
    return text if drawn else Text("▏", "green")
