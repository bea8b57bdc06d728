"""``make bench-replay``: coding agents that change their minds, in bursts (the paper's Figure 6).

Sessions of a file in the form of ``replay_sessions`` (default: generated, seeded), scaled to fit;
interruptions in six strata of a call, alone and in bursts of up to 8 chained revisions. Retire
against native abort + resend with prefix caching, the same plan, rounds in alternating order, on
one AsyncLLM with real sidecar and registry (``replay_engine`` says why). Another tenant decodes all
the while; every final answer is compared with a clean run's.
Writes ``results/<device>/replay.json`` and ``replay.svg``.

Usage: python -m bench.replay [--sessions FILE] [--model PATH] [--quick] [--rounds N]
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console

from bench import plots_replay
from bench.replay_engine import Engine, Execution, Native, Retire, engine
from bench.replay_plan import Agent, Scale, Speed, Turn, plan
from bench.replay_rows import Round, Rounds, answer_of, faults, missed, rows, states
from bench.replay_sessions import generate, parse, read
from bench.report import ROOT, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.report import Row

LIMIT_S: Final = 60.0  # for a final version; one that has not advanced by then is stuck
BYSTANDER: Final = Execution("bystander", tuple(range(100, 164)), 64)


@dataclass(frozen=True, slots=True)
class Options:
    """What is replayed."""

    model: str
    scale: Scale
    rounds: int
    cuda: bool = False
    sessions: Path | None = None
    seed: int = 0
    root: Path = ROOT


class Replay:
    """One plan, both arms."""

    def __init__(self, options: Options, made: Engine, agents: list[Agent]) -> None:
        self.options, self.engine, self.agents = options, made, agents
        self.rounds: Rounds = {Native.name: [], Retire.name: []}

    async def measure(self, console: Console) -> None:
        """Every round, arms in alternating order."""
        for number in range(self.options.rounds):
            arms = [Native(self.engine, f"native-{number}"), Retire(self.engine, f"agents{number}")]
            for arm in arms if number % 2 == 0 else reversed(arms):
                one = await self._round(arm, number)
                self.rounds[arm.name].append(one)
                late = sum(run.late for run in one.executions)
                console.print(
                    f"round {number + 1}, {arm.name}: {one.ended_s - one.began_s:.1f} s, "
                    f"{one.goodput:.1f} useful tokens/s, {late} late tokens, "
                    f"{one.advanced:.0%} of {len(one.finals)} final versions advanced",
                    highlight=False,
                )

    async def _round(self, arm: Native | Retire, number: int) -> Round:
        one = Round(began_s=time.monotonic())
        beside = asyncio.create_task(self._bystander(arm, one, number))
        prefix = f"{'native' if isinstance(arm, Native) else 'retire'}{number}"
        await asyncio.gather(*(self._agent(arm, agent, one, prefix) for agent in self.agents))
        one.ended_s = time.monotonic()
        beside.cancel()
        await asyncio.gather(beside, return_exceptions=True)
        await self.engine.settle()
        return one

    async def _agent(self, arm: Native | Retire, agent: Agent, one: Round, prefix: str) -> None:
        for turn in agent.turns:
            await _until(one.began_s + turn.start_s)
            run = await self._turn(arm, agent, turn, one, prefix)
            one.finals.append(run)
            try:
                await asyncio.wait_for(run.over.wait(), LIMIT_S)
            except TimeoutError:
                continue  # it counts as it is

    async def _turn(
        self, arm: Native | Retire, agent: Agent, turn: Turn, one: Round, prefix: str
    ) -> Execution:
        name = f"{prefix}/{agent.name}-{turn.number}"
        run = Execution(f"{name}/0", turn.prompt, turn.out)
        one.executions.append(run)
        await arm.begin(run, agent.name)
        began_s = time.monotonic()
        for version, revision in enumerate(turn.revisions, 1):
            await _until(began_s + revision.after_s)
            old, run = run, Execution(f"{name}/{version}", revision.prompt, turn.out)
            one.executions.append(run)
            await arm.revise(old, run)
        return run

    async def _bystander(self, arm: Native | Retire, one: Round, number: int) -> None:
        """Another tenant's request, again and again, in the agents' batches."""
        other = Retire(self.engine, f"other{number}") if isinstance(arm, Retire) else arm
        for turn in range(10**6):
            run = Execution(f"by{number}{arm.name}/{turn}", BYSTANDER.prompt, BYSTANDER.out)
            await other.begin(run, f"steady-{turn % 4}")
            await run.over.wait()
            one.bystander.append(run)

    async def clean(self) -> dict[str, Execution]:
        """Clean runs of every final answer, and of the bystander."""
        finals = {answer_of(run): run for run in self.rounds[Retire.name][0].finals}
        wanted = {"bystander": BYSTANDER, **finals}
        found: dict[str, Execution] = {}
        for number, (name, run) in enumerate(wanted.items()):
            again = Execution(f"clean/{number}", run.prompt, run.out)
            found[name] = await self.engine.whole(again, salt=f"clean-{number}")
        return found


async def speed(made: Engine, prompt_max: int) -> Speed:
    """Of the idle engine: one long prompt, after one that warms it up."""
    found = Speed(0.0, 0.0)
    for number in range(2):
        run = Execution(
            f"speed/{number}", tuple((7 * n) % 1900 + 50 for n in range(prompt_max)), 24
        )
        await made.whole(run, salt=f"speed-{number}")
        first_s = run.delivered[0][0]
        rest = sum(count for _, count in run.delivered[1:])
        found = Speed((first_s - run.began_s) / prompt_max, (run.delivered[-1][0] - first_s) / rest)
    return found


async def replay(options: Options, console: Console) -> tuple[Rounds, dict[str, Execution]]:
    """Everything that needs the engine."""
    sessions = (
        read(options.sessions)
        if options.sessions
        else parse(generate(options.scale.agents, seed=options.seed))
    )
    with tempfile.TemporaryDirectory(prefix="rr-") as folder:
        async with engine(options.model, Path(folder), cuda=options.cuda) as made:
            measured = await speed(made, options.scale.prompt_max)
            agents = plan(sessions, options.scale, measured, seed=options.seed)
            console.print(
                f"{len(agents)} agents; the idle engine prefills {1 / measured.prefill_token_s:.0f}"
                f" and decodes {1 / measured.decode_token_s:.0f} tokens/s", highlight=False,
            )  # fmt: skip
            run = Replay(options, made, agents)
            await made.settle()
            await run.measure(console)
            return run.rounds, await run.clean()


def run(options: Options, console: Console) -> tuple[Path, list[str]]:
    """Replay, print, draw, write; the path of the result and the promises broken."""
    console.print(f"starting registry, sidecar and engine on {options.model} ...")
    rounds, clean = asyncio.run(replay(options, console))
    made = rows(rounds, Retire.name, Native.name, clean)
    _print(made, rounds, console)
    device = "h200" if options.cuda else "cpu"
    path = write("replay", made, device=device, samples=_samples(rounds), root=options.root)
    source = options.sessions.name if options.sessions else "generated sessions"
    note = (
        f"{Path(options.model).name}; {source}, seed {options.seed}; last of {options.rounds} "
        "rounds shown; ×n: a burst of n chained revisions; intervals are in replay.json"
    )
    console.print(f"drawn: {plots_replay.draw(rounds, path.with_suffix('.svg'), note=note)}")
    console.print(f"written: {path}")
    return path, faults(made)


def _print(made: list[Row], rounds: Rounds, console: Console) -> None:
    for row in made:
        goal = f"  goal {row.goal}: {'met' if row.met else 'MISSED'}" if row.goal else ""
        against = "" if row.baseline is None else f"native {row.baseline:9.2f}"
        console.print(
            f"{row.metric:24} {row.ours:9.2f} {row.unit:12} {against}{goal}", highlight=False
        )
    for arm, found in rounds.items():
        console.print(f"revised when ({arm}): {states(found)}", highlight=False)
    for line in missed(made, rounds[Retire.name], rounds[Native.name]):
        console.print("missed: " + line, highlight=False)
    for line in faults(made):
        console.print(f"FAULT: {line}", style="bold red")


def _samples(rounds: Rounds) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for arm, name in ((Retire.name, "retire"), (Native.name, "native")):
        found[f"{name}: goodput tokens/s"] = [one.goodput for one in rounds[arm]]
        found[f"{name}: cleanup ms"] = [ms for one in rounds[arm] for ms in one.closing_ms()]
        found[f"{name}: obsolete ms"] = [ms for one in rounds[arm] for ms in one.obsolete_ms()]
        found[f"{name}: final ttft ms"] = [ms for one in rounds[arm] for ms in one.first_token_ms()]
        found[f"{name}: late tokens"] = [
            float(run.late) for one in rounds[arm] for run in one.superseded()
        ]
    return found


async def _until(at_s: float) -> None:
    await asyncio.sleep(max(0.0, at_s - time.monotonic()))


def quick(root: Path) -> Options:
    """Seconds: two agents, three turns each, a tiny model."""
    return Options("qwen3-tiny", Scale(2, 3, prompt_max=384, gap_s=0.5), 1, root=root)


def _options(arguments: Sequence[str] | None) -> Options:
    from bench.dominance_engine import on_cuda

    parser = argparse.ArgumentParser(prog="bench.replay", description=__doc__)
    cuda = on_cuda()
    parser.add_argument("--sessions", type=Path, help="recorded sessions, .jsonl or .jsonl.gz")
    parser.add_argument("--model", default="qwen3-deep", help="name of a tiny model, or a path")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if cuda else "cpu")
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--turns", type=int, default=6, help="of each agent")
    parser.add_argument("--prompt-max", type=int, default=8192 if cuda else 1536, help="tokens")
    parser.add_argument("--rounds", type=int, default=3, help="of each arm")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="seconds, on a tiny model")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder that holds results/")
    given = parser.parse_args(arguments)
    if (given.device == "cuda") is not cuda:
        parser.error(f"--device {given.device}: this machine {'has' if cuda else 'has no'} CUDA")
    if given.quick:
        return quick(given.root)
    scale = Scale(given.agents, given.turns, given.prompt_max, gap_s=2.0)
    return Options(given.model, scale, given.rounds, cuda, given.sessions, given.seed, given.root)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 1 when a promise was broken, whatever the times."""
    _, broken = run(_options(arguments), Console())
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
