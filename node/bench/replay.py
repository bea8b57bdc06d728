"""``make bench-replay``: coding agents that change their minds, in bursts (the paper's Figure 6).

Sessions of a file in the form of ``replay_sessions`` (default: generated, seeded), scaled to fit;
interruptions in six strata of a call, alone and in bursts of up to 8 chained revisions; arrivals
compressed in time by each factor of ``--compress``. Retire against native abort + resend with
prefix caching at each of ``--quanta``, and against resend without abort; the same plan, rounds in
rotating order, on one AsyncLLM with real sidecar and registry (``replay_engine`` says why). Another
tenant decodes all the while; final answers are compared with a clean run's where weights are real.
Writes ``results/<device>/replay.json`` and ``replay.svg``.

Usage: python -m bench.replay [--sessions FILE] [--model PATH] [--quick] [--rounds N]
    [--compress 1,4,16] [--quanta 2048,8192]
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console

from bench import plots_replay, replay_matrix, turns
from bench.replay_engine import Engine, Execution, Native, Resend, Retire, engine
from bench.replay_matrix import Matrix, Setting
from bench.replay_plan import Agent, Scale, Speed, Turn, plan
from bench.replay_rows import Round, Rounds, answer_of, faults, missed, peak, rows, states
from bench.replay_sessions import Session, generate, parse, read
from bench.replay_sweep import best, sweep_rows
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
    quanta: tuple[int, ...] = (512,)  # of the native arm, tokens a step
    compress: tuple[float, ...] = (1.0,)
    cuda: bool = False
    kv_gib: int = 32  # of the GPU's memory
    matrix: Setting | None = None  # rates x concurrency after the replay
    sessions: Path | None = None
    seed: int = 0
    root: Path = ROOT


Arm = Native | Retire


class Replay:
    """One plan, every arm."""

    def __init__(self, options: Options, made: Engine, agents: list[Agent]) -> None:
        self.options, self.engine, self.agents = options, made, agents
        self.rounds: Rounds = {arm.name: [] for arm in self._arms("")}

    def _arms(self, salt: str) -> list[Arm]:
        quanta = self.options.quanta
        natives = [Native(self.engine, f"native{q}-{salt}", q) for q in quanta]
        resend = Resend(self.engine, f"resend-{salt}", max(quanta))
        return [*natives, resend, Retire(self.engine, f"agents{salt.rpartition('-')[2]}")]

    async def measure(self, compress: float, console: Console) -> None:
        """Every round, arms in rotating order."""
        for number in range(self.options.rounds):
            arms = self._arms(f"{compress:g}-{number}")
            shift = number % len(arms)
            for arm in (*arms[shift:], *arms[:shift]):
                await self.engine.use(arm.quantum)
                one = await self._round(arm, f"{compress:g}-{number}")
                self.rounds[arm.name].append(one)
                console.print(_told(compress, arm.name, one), highlight=False)
        await self.engine.use(0)

    async def _round(self, arm: Arm, number: str) -> Round:
        one = Round(began_s=time.monotonic())
        beside = asyncio.create_task(self._bystander(arm, one, number))
        prefix = f"{arm.name}{number}".replace("/", " ")
        await asyncio.gather(*(self._agent(arm, agent, one, prefix) for agent in self.agents))
        one.ended_s = time.monotonic()
        beside.cancel()
        await asyncio.gather(beside, return_exceptions=True)
        await arm.finish(one.executions)
        await self.engine.settle()
        return one

    async def _agent(self, arm: Arm, agent: Agent, one: Round, prefix: str) -> None:
        for turn in agent.turns:
            await _until(one.began_s + turn.start_s)
            run = await self._turn(arm, agent, turn, one, prefix)
            one.finals.append(run)
            try:
                await asyncio.wait_for(run.over.wait(), LIMIT_S)
            except TimeoutError:
                continue  # it counts as it is

    async def _turn(self, arm: Arm, agent: Agent, turn: Turn, one: Round, prefix: str) -> Execution:
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

    async def _bystander(self, arm: Arm, one: Round, number: str) -> None:
        """Another tenant's request, again and again, in the agents' batches."""
        tenant = f"other{number.rpartition('-')[2]}"  # as many slots as rounds, whatever is swept
        other = Retire(self.engine, tenant) if isinstance(arm, Retire) else arm
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


def _told(compress: float, arm: str, one: Round) -> str:
    late = sum(run.late for run in one.executions)
    return (
        f"x{compress:g}, {arm}: {one.ended_s - one.began_s:.1f} s, {one.goodput:.1f} useful "
        f"tokens/s, {late} late tokens, at most {peak(one)} obsolete, {one.advanced:.0%} of "
        f"{len(one.finals)} final versions advanced"
    )


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


@dataclass(slots=True)
class Found:
    """What a replay came to."""

    sweep: dict[float, Rounds]
    clean: dict[str, Execution] | None  # None: random weights as they come have no answers
    matrix: Matrix | None = None


async def replay(options: Options, console: Console) -> Found:
    """Everything that needs the engine."""
    sessions = (
        read(options.sessions)
        if options.sessions
        else parse(generate(options.scale.agents, seed=options.seed))
    )
    found = Found({}, None)
    with tempfile.TemporaryDirectory(prefix="rr-") as folder:
        async with engine(
            options.model, Path(folder), cuda=options.cuda, kv_gib=options.kv_gib
        ) as made:
            with turns.turn():
                await _measure(made, options, sessions, found, console)
    return found


async def _measure(
    made: Engine, options: Options, sessions: list[Session], found: Found, console: Console
) -> None:
    measured = await speed(made, options.scale.prompt_max)
    console.print(
        f"the idle engine prefills {1 / measured.prefill_token_s:.0f}"
        f" and decodes {1 / measured.decode_token_s:.0f} tokens/s", highlight=False,
    )  # fmt: skip
    for compress in options.compress:
        scale = replace(options.scale, compress=compress)
        run = Replay(options, made, plan(sessions, scale, measured, seed=options.seed))
        await made.settle()
        await run.measure(compress, console)
        found.sweep[compress] = run.rounds
        if not options.cuda:
            found.clean = await run.clean()
    if options.matrix is not None:
        found.matrix = Matrix(made, options.matrix)
        await found.matrix.measure(console)


def run(options: Options, console: Console) -> tuple[Path, list[str]]:
    """Replay, print, draw, write; the path of the result and the promises broken."""
    console.print(f"starting registry, sidecar and engine on {options.model} ...")
    found = asyncio.run(replay(options, console))
    aborts = [name for name in found.sweep[options.compress[0]] if name.startswith(Native.name)]
    densest = found.sweep[max(options.compress)]
    native = best(densest, aborts)
    made = rows(densest, Retire.name, native, found.clean)
    made += sweep_rows(
        found.sweep, Retire.name, aborts, f"{Resend.name}, {max(options.quanta)} a step"
    )
    _print(made, densest, native, console)
    device = "h200" if options.cuda else "cpu"
    if found.matrix is not None:
        cells, series = replay_matrix.rows(found.matrix), replay_matrix.samples(found.matrix)
        write("matrix", cells, device=device, samples=series, root=options.root)
    path = write("replay", made, device=device, samples=_samples(found.sweep), root=options.root)
    source = options.sessions.name if options.sessions else "generated sessions"
    note = (
        f"{Path(options.model).name}; {source}, seed {options.seed}; last of {options.rounds} "
        f"rounds at compression {max(options.compress):g}; ×n: a burst of n chained revisions"
    )
    console.print(f"written: {path}")
    console.print(f"drawn: {plots_replay.draw(densest, path.with_suffix('.svg'), note=note)}")
    return path, faults(made)


def _print(made: list[Row], rounds: Rounds, native: str, console: Console) -> None:
    for row in made:
        goal = f"  goal {row.goal}: {'met' if row.met else 'MISSED'}" if row.goal else ""
        against = "" if row.baseline is None else f"native {row.baseline:9.2f}"
        console.print(
            f"{row.metric:36} {row.ours:9.2f} {row.unit:12} {against}{goal}", highlight=False
        )
    for arm, found in rounds.items():
        console.print(f"revised when ({arm}): {states(found)}", highlight=False)
    for line in missed(made, rounds[Retire.name], rounds[native]):
        console.print("missed: " + line, highlight=False)
    for line in faults(made):
        console.print(f"FAULT: {line}", style="bold red")


def _samples(sweep: dict[float, Rounds]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for compress, rounds in sweep.items():
        for arm, ones in rounds.items():
            name = f"x{compress:g} {arm}"
            found[f"{name}: goodput tokens/s"] = [one.goodput for one in ones]
            found[f"{name}: duration s"] = [one.ended_s - one.began_s for one in ones]
            found[f"{name}: cleanup ms"] = [ms for one in ones for ms in one.closing_ms()]
            found[f"{name}: obsolete ms"] = [ms for one in ones for ms in one.obsolete_ms()]
            found[f"{name}: final ttft ms"] = [ms for one in ones for ms in one.first_token_ms()]
            found[f"{name}: late tokens"] = [
                float(run.late) for one in ones for run in one.superseded()
            ]
    return found


async def _until(at_s: float) -> None:
    await asyncio.sleep(max(0.0, at_s - time.monotonic()))


def quick(root: Path) -> Options:
    """Seconds: two agents, three turns each, a tiny model."""
    scale = Scale(2, 3, prompt_max=384, gap_s=0.5)
    matrix = Setting(1.5, 256, 200, (128, 512), (0.0, 2.0), (2,))
    return Options("qwen3-tiny", scale, 1, (128, 512), (1.0, 8.0), matrix=matrix, root=root)


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
    parser.add_argument("--compress", default="1,4,16", help="times of arrivals are divided by it")
    parser.add_argument("--quanta", default="2048,8192" if cuda else "128,512")
    parser.add_argument("--window", type=float, default=0.0, help="of a matrix cell, s; 0: none")
    parser.add_argument("--rates", default="0,0.5,2", help="revisions a scope and second")
    parser.add_argument("--scopes", default="4,8")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kv-gib", type=int, default=32, help="KV cache on a GPU")
    parser.add_argument("--quick", action="store_true", help="seconds, on a tiny model")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder that holds results/")
    given = parser.parse_args(arguments)
    if (given.device == "cuda") is not cuda:
        parser.error(f"--device {given.device}: this machine {'has' if cuda else 'has no'} CUDA")
    if given.quick:
        return quick(given.root)
    scale = Scale(given.agents, given.turns, given.prompt_max, gap_s=2.0)
    quanta = tuple(int(one) for one in given.quanta.split(","))
    compress = tuple(float(one) for one in given.compress.split(","))
    matrix = _setting(given, quanta) if given.window else None
    return Options(
        given.model, scale, given.rounds, quanta, compress, cuda, given.kv_gib, matrix,
        given.sessions, given.seed, given.root,
    )  # fmt: skip


def _setting(given: argparse.Namespace, quanta: tuple[int, ...]) -> Setting:
    rates = tuple(float(one) for one in given.rates.split(","))
    scopes = tuple(int(one) for one in given.scopes.split(","))
    return Setting(given.window, given.prompt_max, given.prompt_max, quanta, rates, scopes)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 1 when a promise was broken, whatever the times."""
    _, broken = run(_options(arguments), Console())
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
