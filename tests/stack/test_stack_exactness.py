"""Over HTTP a successor answers as a clean run of its prompt does, logprob by logprob (C2)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from bench.stack_streams import CHAT, COMPLETIONS, Agent, Flow, streamed
from bench.tiny_models import VOCABULARY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.stack import Stack

BLOCK = 32
TOLERANCE = 1e-4  # float32 on the CPU; the power below is over a thousand times larger
OUTPUTS = 8
# Greedy, but allowed with n > 1. No seed: vLLM's CPU runner dies of one in a chunked prefill.
ARGMAX: dict[str, Any] = {"temperature": 1.0, "top_k": 1, "seed": None}


def tokens(count: int, seed: int) -> list[int]:
    """Seeded random prompt without special tokens."""
    rng = random.Random(seed)
    return [rng.randrange(10, VOCABULARY - 10) for _ in range(count)]


OLD = tokens(600, 1)
TAIL = tokens(80, 2)
LENGTHS = pytest.mark.parametrize(
    ("common", "certified"),
    [(0, 0), (BLOCK - 1, 0), (BLOCK, BLOCK), (400, 384), (600, 576)],
    ids=["nothing", "one block less one token", "one block", "many blocks", "everything"],
)
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def asked(stack: Stack, prompt: Sequence[int], **params: Any) -> dict[str, Any]:
    """A completion body whose answer shows logprobs."""
    return stack.body(list(prompt), **{"max_tokens": OUTPUTS, "logprobs": 1, **params})


def chatted(stack: Stack, messages: Sequence[Mapping[str, str]], **params: Any) -> dict[str, Any]:
    """A chat body whose answer shows logprobs."""
    body = asked(stack, [], logprobs=True, messages=list(messages), **params)
    del body["prompt"]
    return body


def logprobs(answer: Mapping[str, Any], choice: int = 0) -> list[float]:
    """Of one choice, of a whole answer or a chunk, chat or completion."""
    for found in answer.get("choices", ()):
        shown = found.get("logprobs")
        if found["index"] == choice and shown:
            if "content" in shown:
                return [token["logprob"] for token in shown["content"]]
            return list(shown["token_logprobs"])
    return []


def flow_logprobs(flow: Flow) -> list[float]:
    """Of a whole stream that ended well."""
    assert flow.ended().done and flow.error is None, flow
    return [value for frame in flow.frames if frame.body for value in logprobs(frame.body)]


def distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Largest difference of a logprob; infinite when the tokens differ in number."""
    if len(one) != len(other) or not one:
        return float("inf")
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def clean(stack: Stack, body: Mapping[str, Any], path: str = COMPLETIONS) -> list[float]:
    """The same request for a tenant that has never computed anything: cold, and alone."""
    stranger = Agent.new(stack, "clean")
    headers = stack.headers(stranger.scope, stranger.scope)
    answer = stack.http.post(path, json={**body, "stream": False}, headers=headers)
    assert answer.status_code == 200, answer.text
    return logprobs(answer.json())


def old_stream(stack: Stack, prompt: Sequence[int] = OLD, **params: Any) -> tuple[Agent, Flow]:
    """A scope whose first version is decoding."""
    agent = Agent.new(stack, "exact", params.pop("tenant", f"t{random.randrange(10**9)}"))
    flow = agent.stream(prompt, max_tokens=3300, **params)
    return agent, flow.tokens_at_least(3)


def supersede(
    agent: Agent, body: Mapping[str, Any], *, stream: bool
) -> tuple[Mapping[str, Any], list[float]]:
    """SUPERSEDE at the current version; the receipt and the successor's logprobs."""
    if stream:
        flow = agent.supersede_stream(agent.version, body)
        return flow.ended().receipt, flow_logprobs(flow)
    call = {"expected_version": agent.version, "request": body, "stream": False}
    answer = agent.post("supersede", call)
    assert answer.status_code == 200, answer.text
    return answer.json()["receipt"], logprobs(answer.json()["response"])


def test_another_prefix_moves_the_logprobs_far_more_than_the_tolerance(stack: Stack) -> None:
    """The power of every comparison below, measured before it is trusted; untagged too."""
    body = asked(stack, OLD[:320] + TAIL)
    expected = clean(stack, body)
    assert len(expected) == OUTPUTS
    moved = distance(expected, clean(stack, asked(stack, tokens(320, 77) + TAIL)))
    untagged = logprobs(stack.http.post(COMPLETIONS, json=body).json())
    print(f"another prefix moves {moved:.3f}, the tolerance is {TOLERANCE}")
    assert moved > 1000 * TOLERANCE
    assert distance(expected, clean(stack, body)) < TOLERANCE
    assert distance(expected, untagged) < TOLERANCE


@STREAMED
@LENGTHS
def test_a_successor_is_exact(stack: Stack, common: int, certified: int, stream: bool) -> None:
    """Inherited is the block-aligned common prefix, and the output is a clean run's."""
    body = asked(stack, OLD[:common] + TAIL)
    expected = clean(stack, body)
    agent, old = old_stream(stack)
    receipt, found = supersede(agent, body, stream=stream)
    assert (receipt["inheritable_tokens"], receipt["certified_tokens"]) == (common, certified)
    assert distance(found, expected) < TOLERANCE
    assert old.ended().error is not None or receipt["requests"][0]["state"] == "finished"


def test_the_same_prompt_again_is_exact(stack: Stack) -> None:
    """A whole prompt is inherited up to the block of its last token, whose logits are needed."""
    body = asked(stack, OLD[:320])
    expected = clean(stack, body)
    agent, _ = old_stream(stack)
    receipt, found = supersede(agent, body, stream=False)
    assert (receipt["certified_tokens"], receipt["stop_reason"]) == (288, "block_boundary")
    assert distance(found, expected) < TOLERANCE


def test_a_successor_without_inheritance_is_cold_and_exact(stack: Stack) -> None:
    """``inherit: never`` certifies nothing and answers the same: reuse changed no output above."""
    body = asked(stack, OLD[:400] + TAIL)
    expected = clean(stack, body)
    agent, _ = old_stream(stack)
    call = {"expected_version": agent.version, "request": body, "stream": False}
    answer = agent.post("supersede", {**call, "contract": {"inherit": "never"}}).json()
    receipt = answer["receipt"]
    assert (receipt["certified_tokens"], receipt["stop_reason"]) == (0, "contract")
    assert distance(logprobs(answer["response"]), expected) < TOLERANCE


def test_what_was_generated_is_inherited_too(stack: Stack) -> None:
    """A context that goes on from the old output keeps its KV, and is exact."""
    agent, old = old_stream(stack, OLD[:100])
    old.tokens_at_least(80)
    said = [t for f in old.frames if f.tokens for t in f.body["choices"][0]["token_ids"]]
    body = asked(stack, OLD[:100] + said[:60] + TAIL)
    receipt, found = supersede(agent, body, stream=True)
    assert (receipt["inheritable_tokens"], receipt["certified_tokens"]) == (160, 160)
    assert distance(found, clean(stack, body)) < TOLERANCE


@STREAMED
def test_three_choices_are_exact(stack: Stack, stream: bool) -> None:
    """n=3 on both sides: three old requests retire, three choices of the successor inherit."""
    body = asked(stack, OLD[:400] + TAIL, n=3, **ARGMAX)
    expected = clean(stack, asked(stack, OLD[:400] + TAIL))
    agent, old = old_stream(stack, n=3, **ARGMAX)
    old.until(lambda flow: len(last_indices(flow)) == 3)
    call = {"expected_version": agent.version, "request": body, "stream": False}
    if stream:
        flow = agent.supersede_stream(agent.version, body).ended()
        receipt = flow.receipt
        found = [
            [v for f in flow.frames if f.body for v in logprobs(f.body, choice)]
            for choice in range(3)
        ]
    else:
        answer = agent.post("supersede", call).json()
        receipt = answer["receipt"]
        found = [logprobs(answer["response"], choice) for choice in range(3)]
    assert receipt["certified_tokens"] == 384
    assert all(distance(choice, expected) < TOLERANCE for choice in found)
    published = {q["request_id"].split("_")[0]: q for q in receipt["requests"]}
    assert len(published) == len(receipt["requests"]) == 3
    old.ended()
    shown = {str(i): last for i, last in last_indices(old).items()}
    assert {i: q["last_published_index"] for i, q in published.items()} == shown


def last_indices(flow: Flow) -> dict[int, int]:
    """Choice -> index of its last token."""
    counts: dict[int, int] = {}
    for frame in flow.frames:
        for choice in (frame.body or {}).get("choices", ()):
            more = len(choice.get("token_ids") or ())
            if more:
                counts[choice["index"]] = counts.get(choice["index"], -1) + more
    return counts


def test_queued_tokens_of_a_slow_consumer_change_nothing(stack: Stack) -> None:
    """The old stream's client reads nothing while the engine runs ahead: its queue is dropped."""
    body = asked(stack, OLD[:400] + TAIL)
    expected = clean(stack, body)
    agent = Agent.new(stack, "slow")
    slow = streamed(stack.body(OLD, max_tokens=1500, logprobs=5))
    with stack.http.stream("POST", COMPLETIONS, json=slow, headers=agent.headers) as answer:
        lines = answer.iter_lines()
        next(lines)
        until_output(agent, 300)
        receipt, found = supersede(agent, body, stream=True)
        assert receipt["certified_tokens"] == 384
        assert distance(found, expected) < TOLERANCE
        assert [line for line in lines if line][-1].startswith(
            'data: {"error":{"code":"superseded"'
        )


def until_output(agent: Agent, count: int) -> None:
    """Wait until the engine has generated this much for the scope."""
    for _ in range(600):
        if agent.view()["requests"][0]["output_tokens"] >= count:
            return
    raise AssertionError(f"{count} tokens were not generated")


SYSTEM = {"role": "system", "content": "You plan a walk through the old town. " * 12}
FIRST = {"role": "user", "content": "Begin at the river and end at the station."}
CHATS = {
    "another beginning": [{"role": "system", "content": "Be brief."}, FIRST],
    "another question": [SYSTEM, {"role": "user", "content": "No: begin at the castle."}],
    "one more turn": [
        SYSTEM,
        FIRST,
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "And now in the rain."},
    ],
}


@STREAMED
@pytest.mark.parametrize("revised", CHATS)
def test_a_chat_successor_is_exact(stack: Stack, revised: str, stream: bool) -> None:
    """Inherited is what both rendered conversations have in common, down to the block."""
    body = chatted(stack, CHATS[revised])
    expected = clean(stack, body, CHAT)
    agent = Agent.new(stack, "chat", f"t{random.randrange(10**9)}")
    old = Flow(
        stack, streamed(chatted(stack, [SYSTEM, FIRST], max_tokens=3300)), agent.headers, path=CHAT
    )
    old.tokens_at_least(3)
    common = common_prefix(rendered(stack, [SYSTEM, FIRST]), rendered(stack, CHATS[revised]))
    receipt, found = supersede(agent, body, stream=stream)
    assert (
        receipt["inheritable_tokens"] >= common
    )  # more when the old output happens to go on alike
    assert receipt["certified_tokens"] == receipt["inheritable_tokens"] // BLOCK * BLOCK
    assert receipt["inheritable_tokens"] < common + 4
    assert distance(found, expected) < TOLERANCE
    assert old.ended().error is not None or receipt["requests"][0]["state"] == "finished"


def rendered(stack: Stack, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """The tokens of a conversation, as the server sees them."""
    body = {"model": stack.model, "messages": list(messages), "add_generation_prompt": True}
    return stack.http.post("/tokenize", json=body).raise_for_status().json()["tokens"]


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading tokens are equal."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
