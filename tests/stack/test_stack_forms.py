"""Every form in which tokens are served, superseded in the middle, on two API processes."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from stack_forms import PLACES, Form, chat, choice_tokens, completion, superseded, text_of

from bench.stack_streams import CHAT, COMPLETIONS, Agent, Flow, streamed

if TYPE_CHECKING:
    from bench.stack import Stack

PLAN = [31] * 96
OTHER = [31] * 64 + [47] * 40


def tool(name: str, field: str) -> dict[str, Any]:
    schema = {
        "type": "object", "required": [field], "additionalProperties": False,
        "properties": {field: {"type": "string", "minLength": 2000, "maxLength": 2000}},
    }  # fmt: skip
    return {
        "tools": [{"type": "function", "function": {"name": name, "parameters": schema}}],
        "tool_choice": {"type": "function", "function": {"name": name}},
        "ignore_eos": False,  # vLLM fails a grammar that is over and must go on
    }


def regex(pattern: str) -> dict[str, Any]:
    return {"structured_outputs": {"regex": pattern}, "ignore_eos": False}


def test_streams_of_both_processes_end_whatever_their_form(forms: Stack) -> None:
    """Completions and chats of one scope in both processes: all end, none has a late token."""
    agent = Agent.new(forms, "forms")
    makers = [
        completion(PLAN),
        chat("plan a walk"),
        completion(PLAN, n=2, temperature=1),
        chat("x", logprobs=True),
    ]
    for maker in makers:  # what is slow the first time would let the others end before
        maker.flow(Agent.new(forms, "warm"), max_tokens=3).ended()
    olds = [makers[i % len(makers)].flow(agent) for i in range(PLACES)]
    for old in olds:
        old.tokens_at_least(3)
    flow, receipt = superseded(agent, olds, completion(PLAN, max_tokens=6))
    gates = {gate["gate"]: gate["outcome"] for gate in receipt["gates"]}
    assert len(gates) == 2 and set(gates.values()) == {"acked"}
    assert flow.tokens == 6
    assert {request["state"] for request in receipt["requests"]} == {"decode"}
    told = sum(request["last_published_index"] + 1 for request in receipt["requests"])
    assert told == sum(old.tokens for old in olds), "what was said to be published was read"


@pytest.mark.parametrize(
    "form", [completion(PLAN), chat("plan a walk")], ids=["completion", "chat"]
)
@pytest.mark.parametrize("n", [1, 3])
def test_usage_counts_what_was_delivered(forms: Stack, form: Form, n: int) -> None:
    """The end of a superseded stream says it, also where ``include_usage`` was asked for."""
    agent = Agent.new(forms, "usage")
    asked = {"stream_options": {"include_usage": True}, "n": n, "temperature": float(n > 1)}
    old = form.flow(agent, **asked).tokens_at_least(12)
    flow, _ = superseded(agent, [old], form, max_tokens=5, **asked)
    assert old.error is not None
    usage = old.error["usage"]
    assert usage["completion_tokens"] == old.tokens
    last = [f.body for f in flow.frames if f.body and "usage" in f.body and f.body["usage"]][-1]
    assert last["usage"]["completion_tokens"] == flow.tokens == 5 * n
    assert usage["prompt_tokens"] == last["usage"]["prompt_tokens"] > 0
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_a_tool_call_is_superseded_by_another(forms: Stack) -> None:
    """The old arguments end in the middle; the new ones are those of a clean run, under their
    own schema."""
    agent = Agent.new(forms, "tools")
    old = chat("find a hotel", **tool("book", "hotel")).flow(agent)
    old.until(lambda flow: '"hotel"' in text_of(flow))
    new = chat("find a train", max_tokens=200, **tool("ride", "train"))
    flow, _ = superseded(agent, [old], new)
    body = streamed({"model": forms.model, **new.body})
    clean = Flow(forms, body, path=new.path).ended()
    assert text_of(flow) == text_of(clean) and tools_of(flow) == tools_of(clean) == ["ride"]
    assert '"train"' in text_of(flow) and '"hotel"' not in text_of(flow)
    assert tools_of(old) == ["book"]
    with pytest.raises(json.JSONDecodeError):
        json.loads(text_of(old))


def tools_of(flow: Flow) -> list[str]:
    deltas = [choice.get("delta") or {} for choice in frames_choices(flow)]
    calls = [call for delta in deltas for call in delta.get("tool_calls") or ()]
    return [name for call in calls if (name := (call.get("function") or {}).get("name"))]


def test_a_grammar_is_superseded_by_another(forms: Stack) -> None:
    """The successor follows its own grammar from its first token; inheritance changes nothing."""
    agent = Agent.new(forms, "grammar")
    old = completion(PLAN, **regex("(ab|cd){1500}")).flow(agent)
    old.until(lambda flow: len(text_of(flow)) > 40)
    new = completion(OTHER, **regex("[0-9]{60}"))
    flow, receipt = superseded(agent, [old], new)
    assert receipt["certified_tokens"] >= 64
    assert re.fullmatch("(ab|cd)+[ac]?", text_of(old)), "the old one followed its own"
    assert re.fullmatch("[0-9]{60}", text_of(flow)) and flow.done
    assert text_of(flow) == new.clean(forms)["choices"][0]["text"]
    free = completion(OTHER, max_tokens=60).clean(forms)["choices"][0]["text"]
    assert not re.fullmatch("[0-9]{60}", free), "NEGATIVE CONTROL: the grammar did it"


def test_a_grammar_gives_way_to_none_and_back(forms: Stack) -> None:
    """No grammar is left over from a predecessor, in either direction."""
    agent = Agent.new(forms, "unbound")
    old = completion(PLAN, **regex("(ab|cd){1500}")).flow(agent)
    old.until(lambda flow: len(text_of(flow)) > 20)
    free = completion(OTHER, max_tokens=40)
    flow, _ = superseded(agent, [old], free)
    assert text_of(flow) == free.clean(forms)["choices"][0]["text"]
    running = completion(OTHER).flow(agent).tokens_at_least(5)
    bound = completion(PLAN, **regex("x[yz]{20}"))
    flow, _ = superseded(agent, [running], bound)
    assert re.fullmatch("x[yz]{20}", text_of(flow))


@pytest.mark.parametrize(
    ("before", "after", "inherits"),
    [("red", "red", True), ("red", "blue", False), ("red", None, False), (None, "red", False)],
)
def test_an_adapter_inherits_from_itself_alone(
    forms: Stack, before: str | None, after: str | None, inherits: bool
) -> None:
    """KV of another adapter, or of none, is never taken; the answer is a clean run's."""
    agent = Agent.new(forms, "lora")
    named = {"model": before} if before else {}
    old = completion(PLAN, **named).flow(agent).tokens_at_least(4)
    new = completion(OTHER, max_tokens=12, logprobs=1, **({"model": after} if after else {}))
    flow, receipt = superseded(agent, [old], new)
    assert (receipt["certified_tokens"] >= 64) is inherits, receipt["stop_reason"]
    clean = new.clean(forms)["choices"][0]
    assert text_of(flow) == clean["text"]
    others = {text_of_clean(forms, name) for name in ("red", "blue", None)}
    assert len(others) == 3, "NEGATIVE CONTROL: the adapters say different things"


def text_of_clean(stack: Stack, adapter: str | None) -> str:
    named = {"model": adapter} if adapter else {}
    return completion(OTHER, max_tokens=12, **named).clean(stack)["choices"][0]["text"]


def test_logprobs_of_a_successor_are_a_clean_runs(forms: Stack) -> None:
    """Completion and chat form, five alternatives each; the scope inherits."""
    for new in (completion(OTHER, max_tokens=10, logprobs=5),
                chat("the plan, again", max_tokens=10, logprobs=True, top_logprobs=5)):  # fmt: skip
        agent = Agent.new(forms, "logprobs")
        old = completion(PLAN).flow(agent).tokens_at_least(3)
        flow, _ = superseded(agent, [old], new)
        found, clean = logprobs_of(frames_choices(flow)), logprobs_of(new.clean(forms)["choices"])
        assert len(found) == 10
        assert max(abs(a - b) for a, b in zip(found, clean, strict=True)) < 1e-4


def frames_choices(flow: Flow) -> list[Any]:
    return [c for f in flow.frames for c in (f.body or {}).get("choices", ())]


def logprobs_of(choices: list[Any]) -> list[float]:
    found: list[float] = []
    for choice in choices:
        logprobs = choice.get("logprobs") or {}
        found += logprobs.get("token_logprobs") or ()
        found += [entry["logprob"] for entry in logprobs.get("content") or ()]
    return found


def test_a_stop_string_holds_text_back_and_none_of_it_is_late(forms: Stack) -> None:
    """vLLM keeps the last characters until they cannot begin a stop string; a superseded stream
    never says them. The successor stops where a clean run does."""
    whole = completion(PLAN, max_tokens=60).clean(forms)["choices"][0]["text"]
    agent = Agent.new(forms, "stop")
    never = "\u00a7" * 12
    old = completion(PLAN, stop=[never]).flow(agent).tokens_at_least(20)
    stop = whole[30:36]
    new = completion(PLAN, stop=[stop])
    flow, _ = superseded(agent, [old], new)
    clean = new.clean(forms)["choices"][0]
    assert text_of(flow) == clean["text"] and clean["finish_reason"] == "stop"
    assert stop not in text_of(flow)
    long = completion(PLAN, max_tokens=old.tokens).clean(forms)["choices"][0]["text"]
    assert long.startswith(text_of(old)) and len(text_of(old)) < len(long), "held back for ever"


@pytest.mark.parametrize("form", ["completion", "chat"])
def test_several_choices_end_together_and_count_apart(forms: Stack, form: str) -> None:
    """n = 3: one error for all; the receipt has a line for each choice."""
    agent = Agent.new(forms, "choices")
    make = completion if form == "completion" else chat
    old = make("a plan", n=3, temperature=1.0).flow(agent)
    old.until(lambda flow: all(choice_tokens(flow, i) >= 4 for i in range(3)))
    new = make("another plan", n=3, max_tokens=5, temperature=1.0)
    flow, receipt = superseded(agent, [old], new)
    assert [choice_tokens(flow, i) for i in range(3)] == [5, 5, 5]
    counts = sorted(q["last_published_index"] + 1 for q in receipt["requests"])
    assert counts == sorted(choice_tokens(old, i) for i in range(3))
    assert old.error is not None and len(old.error["published"]) == 3


def test_an_echoed_prompt_is_no_token_of_a_version(forms: Stack) -> None:
    """``echo`` repeats the prompt before the first token; it is counted as no output."""
    agent = Agent.new(forms, "echo")
    form = completion("a plan for the day", echo=True)
    body = {
        "model": forms.model,
        **form.body,
        "stream": True,  # vLLM: with token ids it echoes none; so it says how many there were
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    old = Flow(forms, body, agent.headers).until(lambda flow: len(flow.frames) > 5)
    answer = agent.supersede(agent.version, "a plan for the day", max_tokens=4, echo=True)
    said = answer["response"]["choices"][0]["text"]
    clean = completion("a plan for the day", echo=True, max_tokens=4).clean(forms)
    assert said == clean["choices"][0]["text"] and said.startswith("a plan for the day")
    old.ended(30)
    assert text_of(old).startswith("a plan for the day") and old.error is not None
    said_by_vllm = [
        f.body["usage"]["completion_tokens"] for f in old.frames if f.body and f.body.get("choices")
    ]
    (retired,) = answer["receipt"]["requests"]
    assert retired["last_published_index"] == old.error["last_published_index"]
    assert retired["last_published_index"] + 1 == said_by_vllm[-1] >= len(said_by_vllm)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "a plan", "max_output_tokens": 3000, "store": False}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a plan"}], "max_tokens": 3000}),
    ],
)
def test_other_entry_points_end_with_the_error_too(
    forms: Stack, path: str, body: dict[str, Any]
) -> None:
    """OpenAI's Responses and Anthropic's Messages: no event of the old version after the ack."""
    agent = Agent.new(forms, "entry")
    more = {"model": forms.model, "temperature": 0, "stream": True}
    old = Flow(forms, {**body, **more}, agent.headers, path=path)
    old.until(lambda flow: len(flow.frames) > 10)
    receipt = agent.supersede(agent.version, PLAN, max_tokens=3)["receipt"]
    seen = len(old.frames)
    old.ended(30)
    assert old.error is not None and old.error["code"] == "superseded"
    assert old.error["current"] == receipt["to_version"]
    assert len(old.frames) - seen <= 2, "what was on its way, and the error"


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_whole_answer_is_a_conflict_in_either_process(forms: Stack, path: str) -> None:
    """Calls that do not stream, on connections to both processes: 409, usage of nothing."""
    agent = Agent.new(forms, "whole")
    version = agent.opened()
    form = completion(PLAN) if path == COMPLETIONS else chat("a plan")
    body = {"model": forms.model, **form.body}
    calls = [Flow(forms, body, agent.headers, path=path) for _ in range(4)]
    while len(agent.view()["requests"]) < 4:
        pass
    agent.supersede(version)
    for call in calls:
        call.ended(30)
        assert call.status == 409 and call.error is not None
        assert call.error["usage"]["completion_tokens"] == 0
