"""Coding-agent sessions to replay: read from a file, or generated in the same form.

One JSON object a line (.jsonl, .jsonl.gz): ``id, block_size, tool_tokens, system_tokens, rewinds,
requests[]``, each request ``t, in, out, hash_ids`` and, where recorded, ``api_time, think_time``:
seconds, tokens, one id a block of the prompt; equal ids at equal places mean an equal prefix. The
public data set callanjfox/kv-cache-tester (``traces/*.json``, Apache-2.0) has this form; it stays
outside the repository. Text is in neither: prompts are made from the ids. Never imports vLLM.

Usage: python -m bench.replay_sessions OUT.jsonl [--sessions N] [--seed N]
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BLOCK: Final = 64
_LEAST, _MOST = 10, 2000  # token ids of prompts
_PRIMES: Final = (2_654_435_761, 40_503, 2_246_822_519)


class BadSession(ValueError):
    """A line that is not a session; names the file, the line and the field."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request of a session, unscaled."""

    t_s: float  # from the session's start
    tokens_in: int
    tokens_out: int
    hash_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Session:
    """One agent's recorded calls."""

    name: str
    block: int  # tokens a hash id stands for
    calls: tuple[Call, ...]

    def prompt(self, call: Call, factor: float) -> list[int]:
        """A prompt of ``in * factor`` tokens: two calls share it as far as their ids agree."""
        count = max(1, round(call.tokens_in * factor))
        scaled = self.block * factor
        last = len(call.hash_ids) - 1
        return [
            _token(self.name, call.hash_ids[min(last, int(place / scaled))], place)
            for place in range(count)
        ]


def read(path: Path) -> list[Session]:
    """Every session of a file. BadSession; OSError when it cannot be read."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        found = [_session(path, n, line) for n, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise BadSession(f"{path}: holds no session")
    return found


def parse(raw: Iterable[dict[str, Any]]) -> list[Session]:
    """Sessions from decoded objects."""
    return [_parsed("generated", n, one) for n, one in enumerate(raw, 1)]


def generate(count: int, *, seed: int = 0, calls: int = 12) -> list[dict[str, Any]]:
    """Seeded sessions in the form of the file: contexts that grow, and now and then rewind."""
    return [_generated(random.Random(f"sessions-{seed}-{n}"), n, calls) for n in range(count)]


def _generated(draw: random.Random, number: int, calls: int) -> dict[str, Any]:
    fresh = iter(range(1, 10**9))
    ids = [next(fresh) for _ in range(draw.randint(250, 500))]
    requests, now_s, rewinds = [], 0.0, 0
    for turn in range(calls):
        if turn and draw.random() < 0.15:
            del ids[int(len(ids) * draw.uniform(0.5, 0.95)) :]
            rewinds += 1
        ids += [next(fresh) for _ in range(round(draw.lognormvariate(3.0, 1.0)))]
        out = round(draw.lognormvariate(5.4, 0.9))
        api_s = 2.0 + out / 60
        think_s = draw.lognormvariate(2.2, 1.2)
        requests.append({
            "t": round(now_s, 2), "type": "n", "in": len(ids) * BLOCK - draw.randrange(BLOCK),
            "out": out, "hash_ids": list(ids), "stop": "tool_use",
            "api_time": round(api_s, 2), "think_time": round(think_s, 2),
        })  # fmt: skip
        now_s += api_s + think_s
    return {
        "id": f"generated_{number:04d}", "block_size": BLOCK, "tool_tokens": 12_000,
        "system_tokens": 4_000, "rewinds": rewinds, "requests": requests,
    }  # fmt: skip


def _session(path: Path, number: int, line: str) -> Session:
    try:
        raw = json.loads(line)
    except ValueError as error:
        raise BadSession(f"{path}:{number}: not JSON ({error})") from error
    return _parsed(str(path), number, raw)


def _parsed(where: str, number: int, raw: dict[str, Any]) -> Session:
    try:
        calls = [
            Call(float(one["t"]), int(one["in"]), int(one["out"]), tuple(one["hash_ids"]))
            for one in raw["requests"]
        ]
        usable = tuple(call for call in calls if call.tokens_in > 0 and call.hash_ids)
        return Session(str(raw["id"]), int(raw["block_size"]), usable)
    except (KeyError, TypeError, ValueError) as error:
        raise BadSession(f"{where}:{number}: no session: {error!r}") from error


def _token(name: str, hash_id: int, place: int) -> int:
    """The same for the same session, id and place; spread over the vocabulary."""
    mixed = (sum(name.encode()) + 1) * _PRIMES[1] + hash_id * _PRIMES[0] + place * _PRIMES[2]
    mixed ^= mixed >> 15
    return _LEAST + (mixed * _PRIMES[0] >> 7) % (_MOST - _LEAST)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write generated sessions to a file."""
    parser = argparse.ArgumentParser(prog="bench.replay_sessions", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    made = generate(given.sessions, seed=given.seed)
    given.out.write_text("".join(json.dumps(one) + "\n" for one in made), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
