"""Is the receipt true? Each claim is held against something it was not derived from. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from retire.protocol.contract import GateOutcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from retire.cli.demo.stories import Story
    from retire.protocol.contract import Receipt

BLOCK_TOKENS: Final = 16  # KV block size the demo serves with


@dataclass(frozen=True, slots=True)
class Evidence:
    """A receipt and what else is known of the same transition."""

    story: Story
    receipt: Receipt
    usage: Mapping[str, Any]  # of the successor, from vLLM's own accounting
    old_prompt: Sequence[int]  # token ids, from the server's tokenizer
    new_prompt: Sequence[int]
    terminal: Mapping[str, Any] | None  # the event that ended the old stream


def problems(evidence: Evidence, tokens_read: int) -> list[str]:
    """What does not hold, in words; none: it is true. ``tokens_read``: of the old stream."""
    return [said for true, said in _claims(evidence, tokens_read) if not true]


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return min(len(a), len(b))


def _claims(evidence: Evidence, tokens_read: int) -> Iterator[tuple[bool, str]]:
    receipt = evidence.receipt
    common = common_prefix(evidence.old_prompt, evidence.new_prompt)
    details = evidence.usage.get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens") or 0
    certified = receipt.certified_tokens
    state = "decode" if evidence.story.after_tokens is not None else "prefill"
    states = [request.state for request in receipt.requests]
    yield receipt.to_version == receipt.from_version.next_epoch(), "versions do not follow"
    yield states == [state], f"retired requests are {states}, not one in {state}"
    yield (
        receipt.inheritable_tokens == common,
        f"inheritable {receipt.inheritable_tokens}, but the prompts share {common} tokens",
    )
    yield certified > 0, "nothing was inherited"
    yield certified == cached, f"certified {certified}, but vLLM counted {cached} cached tokens"
    yield certified <= min(common, receipt.frontier_tokens), "certified past prefix or frontier"
    yield certified % BLOCK_TOKENS == 0, "certified a part of a block"
    yield (
        bool(receipt.gates) and all(gate.outcome is GateOutcome.ACKED for gate in receipt.gates),
        "not every gate acknowledged",
    )
    yield from _ending(evidence, tokens_read)


def _ending(evidence: Evidence, tokens_read: int) -> Iterator[tuple[bool, str]]:
    terminal = evidence.terminal or {}
    yield terminal.get("code") == "superseded", f"the old stream ended with {terminal or 'nothing'}"
    yield (
        terminal.get("current") == str(evidence.receipt.to_version),
        "the old stream does not name the version that replaced it",
    )
    published = {request.last_published_index for request in evidence.receipt.requests}
    last = tokens_read - 1 if tokens_read else None
    yield (
        published == {last},
        f"last published index {published}, but {tokens_read} tokens came out",
    )
