"""What a successor shares with the prompt that is being computed, from the calls' bodies alone."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from retire.engine.overlap import shared_tokens, tell
from retire.mailbox import MailboxWriter, Overlaps
from retire.protocol.versions import ScopeKey, Version

KEY = ScopeKey("acme", "plan")
SYSTEM = {"role": "system", "content": "You are a careful engineer. " * 40}


def chat(*turns: str, **more: Any) -> dict[str, Any]:
    users = [{"role": "user", "content": text} for text in turns]
    return {"model": "m", "messages": [SYSTEM, *users], **more}


def shared(old: dict[str, Any], new: dict[str, Any], prompt_tokens: int = 1000) -> int | None:
    return shared_tokens(json.dumps(old).encode(), new, prompt_tokens)


def test_token_lists_are_counted_exactly() -> None:
    """The common prefix of both lists."""
    old = {"model": "m", "prompt": [*range(500), 1, 2]}
    assert shared(old, {"model": "m", "prompt": [*range(500), 7]}) == 500
    assert shared(old, {"model": "m", "prompt": [9]}) == 0


def test_texts_are_counted_by_characters() -> None:
    """Half of the text is half of the tokens."""
    old = {"model": "m", "prompt": "a" * 800 + "b" * 800}
    assert shared(old, {"model": "m", "prompt": "a" * 800 + "c" * 10}) == 500


def test_a_conversation_shares_its_first_turns() -> None:
    """An edited last turn: nearly all; an edited system prompt: nearly nothing."""
    nearly_all = shared(chat("plan A", "go left"), chat("plan A", "go right"))
    assert nearly_all is not None and 900 < nearly_all < 1000
    other = {"model": "m", "messages": [{"role": "system", "content": "Be brief."}]}
    hardly = shared(chat("plan A"), other)
    assert hardly is not None and hardly < 50


def test_a_context_that_is_extended_is_shared_whole() -> None:
    """What follows it does not matter."""
    assert shared(chat("plan A"), chat("plan A", "and B")) == 1000


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (chat("a"), chat("a") | {"model": "other"}),
        (chat("a"), {"model": "m", "prompt": "a"} | {"prompt": [1, 2]}),
        ({"model": "m", "prompt": ["a", "b"]}, {"model": "m", "prompt": "a"}),
        ({"model": "m", "input": "a"}, {"model": "m", "prompt": "a"}),
    ],
)
def test_calls_that_cannot_be_compared_say_nothing(
    old: dict[str, Any], new: dict[str, Any]
) -> None:
    """No guess: the worker then stops the step."""
    assert shared(old, new) is None


def test_a_body_that_is_no_json_says_nothing() -> None:
    """Read in part, or of another route."""
    assert shared_tokens(b"{", chat("a"), 10) is None


def test_only_prefills_of_the_scope_are_told(tmp_path: Path) -> None:
    """A response that has published tokens decodes; another scope's is not concerned."""
    mailbox = MailboxWriter.create(tmp_path / "mailbox", capacity=8)
    overlaps = Overlaps.attach(mailbox.path, writable=True)
    body = json.dumps({"model": "m", "prompt": [1, 2, 3, 4]}).encode()

    def live(scope: str, published: dict[str, int]) -> Any:
        slot = mailbox.open(ScopeKey("acme", scope), Version(1, 0), generation=1)
        return SimpleNamespace(
            tag=SimpleNamespace(key=ScopeKey("acme", scope), slot=slot),
            consumers=[SimpleNamespace(prompt_tokens=4)],
            body=lambda: body,
            last_published=lambda: published,
        )

    prefill, decode, other = live("plan", {}), live("plan", {"r": 3}), live("other", {})
    tell(overlaps, [decode, other], KEY, {"model": "m", "prompt": [1, 2, 9]})
    assert overlaps.get(prefill.tag.slot) is None
    tell(overlaps, [prefill], KEY, {"model": "m", "prompt": [1, 2, 9]})
    assert overlaps.get(prefill.tag.slot) == 2
    assert overlaps.get(other.tag.slot) is None
    mailbox.detach()
