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

BAR: Final = 46  # characters of the longest bar
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
    """One table a story, then what the colours mean."""
    for story in STORIES:
        told = [telling for telling in tellings if telling.story == story.name]
        if told:
            console.print()
            console.print(f"[bold]{story.name}[/]: {story.title}")
            console.print(f'  [dim]"{story.task}" -> "{story.revised}"[/]')
            console.print(_table(told))
    legend = Text("  ")
    for name in ("commit", "unpublishable", "fence", "align", "resume", "hang up", "first token"):
        legend.append("█ ", COLORS[name])
        legend.append(f"{name}  ")
    console.print(legend)


def _table(told: Sequence[Telling]) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for title in ("", "late tokens", "inherited", "first token"):
        table.add_column(title, justify="left" if not title else "right")
    table.add_column("where the time went")
    longest = max(telling.ttft_ms for telling in told)
    for telling in told:
        table.add_row(
            Text(telling.arm.value, style="bold" if telling.arm is Arm.RETIRE else ""),
            _late(telling),
            f"{telling.inherited_tokens} of {telling.prompt_tokens}",
            f"{telling.ttft_ms / 1e3:.2f} s",
            bar(telling, longest),
        )
    return table


def _late(telling: Telling) -> Text:
    text = Text(str(telling.late_tokens), style="bold red" if telling.late_tokens else "bold green")
    if telling.refused_tokens:
        text.append(f" (+{telling.refused_tokens} refused)", "dim")
    return text


def bar(telling: Telling, longest_ms: float) -> Text:
    """Stages to scale; a stage too short for a character is not drawn."""
    text, drawn = Text(), 0
    for name, end_ms in telling.stages_ms.items():
        end = round(BAR * end_ms / longest_ms)
        text.append("█" * max(0, end - drawn), COLORS.get(name, "white"))
        drawn = max(drawn, end)
    return text
