"""``seed`` in a chunked prefill on the CPU: vLLM alone dies of it, with the seam it is exact."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from bench.lab import Lab

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

SEEDED: dict[str, Any] = {"seed": 7, "temperature": 1.0, "max_tokens": 12, "logprobs": None}
LONG = 200  # tokens: four steps of 64
WITHOUT_THE_SEAM = f"""
from bench.lab import Lab, prompt_tokens
lab = Lab(max_num_seqs=4)
lab.submit("fatal", prompt_tokens({LONG}, 1), lab.tag(lab.key), seed=7, temperature=1.0)
lab.run()
"""


@pytest.fixture(autouse=True)
def seam(engine: Lab) -> None:
    """The seam is in place."""
    del engine  # the lab's own environment comes before vLLM is imported
    from retire.engine.seams import compat, seeds

    compat.probe(seeds.SYMBOLS)
    seeds.install()


def _prompt(tokens: int) -> list[int]:
    from bench.lab import prompt_tokens

    return prompt_tokens(tokens, seed=tokens)


def _sampled(lab: Lab, prompt: list[int], *, chunked: bool, **sampling: Any) -> list[int]:
    """What a request samples in an empty engine; only scoped prefills are cut into quanta."""
    lab.clean()
    tag = lab.tag(lab.key) if chunked else None
    stream = lab.submit("one", prompt, tag, **{**SEEDED, **sampling})
    steps = 0
    while not stream.tokens:
        lab.step()
        steps += 1
    assert (steps > 2) is chunked, f"{steps} steps to the first token"
    lab.run()
    return stream.tokens


def test_a_seeded_chunked_prefill_samples_what_an_unchunked_one_does(lab: Lab) -> None:
    """The thrown-away draws leave no trace; another seed shows that the comparison can differ."""
    whole = _sampled(lab, _prompt(LONG), chunked=False)
    assert _sampled(lab, _prompt(LONG), chunked=True) == whole
    assert _sampled(lab, _prompt(LONG), chunked=True, seed=8) != whole


def test_rows_beside_it_keep_their_own_draws(lab: Lab) -> None:
    """A seeded decode in the batch of a seeded chunked prefill samples what it does alone."""
    alone = _sampled(lab, _prompt(20), chunked=False)
    lab.clean()
    beside = lab.submit("beside", _prompt(20), None, **SEEDED)
    lab.step()
    lab.submit("long", _prompt(LONG), lab.tag(lab.key), **{**SEEDED, "seed": 3})
    lab.run()
    assert beside.tokens == alone


def test_a_preempted_seeded_request_goes_on_where_it_was(lab: Lab) -> None:
    """Its recomputation is chunked too, and its generator has drawn for its output already."""
    whole = _sampled(lab, _prompt(LONG), chunked=False)
    lab.clean()
    stream = lab.submit("preempted", _prompt(LONG), lab.tag(lab.key), **SEEDED)
    lab.run(lambda: len(stream.tokens) >= 3)
    assert lab.scheduler.reset_prefix_cache(reset_running_requests=True)  # preempts what runs
    assert lab.request("preempted").num_computed_tokens == 0
    lab.run()
    assert stream.tokens == whole


def test_vllm_alone_dies_of_it() -> None:
    """NEGATIVE CONTROL: without the seam the same request ends the engine's step."""
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_SEAM],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert ended.returncode != 0
    assert "CPU Generator does not use offset" in ended.stderr
