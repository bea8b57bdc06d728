"""Gates G4 and G5 and the tag, on vLLM's own classes (no engine): collector, processor, request."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from engine_api_world import KEY, V2, Node

from retire.engine.publication import CURRENT, Ended, Publication

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # vLLM warns while it is imported
    pytest.mark.timeout(120),  # and takes its time
]
DELTA, CUMULATIVE, FINAL = "DELTA", "CUMULATIVE", "FINAL_ONLY"


class Engine:
    """The front end of an engine whose outputs the test writes: a real OutputProcessor."""

    def __init__(self, publication: Publication | None, *, stream_interval: int = 1) -> None:
        from vllm.v1.engine.output_processor import OutputProcessor

        from retire.engine.seams import delivery, output

        delivery.install()
        output.install()
        self.publication = publication
        self.processor = OutputProcessor(None, log_stats=False, stream_interval=stream_interval)

    def add(self, kind: str, n: int = 1, name: str = "r-1") -> Any:
        """Add a request as ``AsyncLLM.add_request`` does; returns its collector."""
        from vllm.sampling_params import RequestOutputKind, SamplingParams
        from vllm.v1.engine import EngineCoreRequest, async_llm
        from vllm.v1.engine.parallel_sampling import ParentRequest

        params = SamplingParams(n=n, output_kind=RequestOutputKind[kind], detokenize=False)
        request = EngineCoreRequest(
            request_id=name, prompt_token_ids=[1, 2], mm_features=None, sampling_params=params,
            pooling_params=None, arrival_time=0.0, lora_request=None, cache_salt=None,
            data_parallel_rank=None,
        )  # fmt: skip
        request.external_req_id = "r"
        token = CURRENT.set(self.publication)
        if self.publication is not None:
            self.publication.expected_choices = n
            self.publication.expected_id = "r" if name == "r-1" else name
        collector = async_llm.RequestOutputCollector(params.output_kind, name)
        CURRENT.reset(token)
        parent = ParentRequest(request) if n > 1 else None
        for index in range(n):
            if parent is not None:
                import copy

                child = copy.copy(request)
                child.request_id, child.sampling_params = parent.get_child_info(index)
                self.processor.add_request(child, "p", parent, index, collector)
            else:
                self.processor.add_request(request, "p", None, 0, collector)
        return collector

    def emit(self, tokens: dict[str, list[int]], *, finish: bool = False) -> Any:
        """Outputs of one step, by engine request id."""
        from vllm.v1.engine import EngineCoreOutput, FinishReason

        reason = FinishReason.LENGTH if finish else None
        outputs = [
            EngineCoreOutput(request_id=name, new_token_ids=ids, finish_reason=reason)
            for name, ids in tokens.items()
        ]
        return self.processor.process_outputs(outputs, 0.0, None)


def chunk(index: int) -> bytes:
    """A frame as a completion stream writes it."""
    return b'data: {"choices":[{"index":%d,"text":"x"}]}\n\n' % index


@pytest.fixture
def publication(node: Node) -> Publication:
    """A streaming response of version 1.4."""
    made = node.publications.open()
    made.bind(node.tag(), node.view)
    made.streaming = True
    return made


@pytest.mark.parametrize("kind", [DELTA, CUMULATIVE, FINAL])
@pytest.mark.parametrize("n", [1, 3])
async def test_nothing_waiting_is_delivered_after_the_switch(
    node: Node, publication: Publication, kind: str, n: int
) -> None:
    """What the collector held when the word changed never comes out; an empty end does."""
    engine = Engine(publication)
    collector = engine.add(kind, n)
    names = ["r-1"] if n == 1 else [f"{i}_r-1" for i in range(n)]
    engine.emit({name: [7, 8] for name in names}, finish=kind == FINAL)
    assert collector.output is not None
    node.advance()
    for take in (collector.get_nowait(), await collector.get()):
        assert take.finished
        assert take.request_id == "r"
        assert [(c.index, c.text, list(c.token_ids), c.finish_reason) for c in take.outputs] == [
            (i, "", [], "abort") for i in range(n)
        ]
        assert {c.stop_reason for c in take.outputs} == {"superseded"}


async def test_control_vllms_own_abort_delivers_what_waited(node: Node) -> None:
    """Negative control: without a tag, an abort merges into the waiting output and comes out."""
    del node
    engine = Engine(None)
    collector = engine.add(DELTA)
    engine.emit({"r-1": [7, 8]})
    engine.processor.abort_requests(["r-1"], internal=True)
    output = collector.get_nowait()
    assert list(output.outputs[0].token_ids) == [7, 8]


async def test_an_untagged_request_gets_vllms_own_collector(node: Node) -> None:
    """Plain vLLM keeps its class: no cost, no behaviour of ours."""
    from vllm.v1.engine.output_processor import RequestOutputCollector

    del node
    assert type(Engine(None).add(DELTA)) is RequestOutputCollector


async def test_a_waiting_consumer_is_woken_by_the_switch(
    node: Node, publication: Publication
) -> None:
    """A consumer that waits for its first token ends with the switch, without an engine output."""
    collector = Engine(publication).add(DELTA)
    waiting = asyncio.create_task(collector.get())
    await asyncio.sleep(0.01)
    node.advance()
    node.switch()
    output = await asyncio.wait_for(waiting, 1)
    assert output.finished
    await asyncio.sleep(0)
    assert node.aborted == [["r-1"]]


async def test_an_expired_lease_holds_output_and_lets_it_go(
    node: Node, publication: Publication
) -> None:
    """While the lease is away get_nowait says nothing and get waits; then the same tokens come."""
    engine = Engine(publication)
    collector = engine.add(DELTA)
    engine.emit({"r-1": [7]})
    node.lease(held=False)
    assert collector.get_nowait() is None
    waiting = asyncio.create_task(collector.get())
    await asyncio.sleep(0.1)
    assert not waiting.done()
    engine.emit({"r-1": [8]})
    node.lease(held=True)
    output = await asyncio.wait_for(waiting, 1)
    assert list(output.outputs[0].token_ids) == [7, 8]


async def test_a_lease_that_stays_away_ends_the_request(
    node: Node, publication: Publication
) -> None:
    """After the hold time the consumer gets a final output that says so."""
    node.publications.hold_s = 0.05
    engine = Engine(publication)
    collector = engine.add(DELTA)
    engine.emit({"r-1": [7]})
    node.lease(held=False)
    output = await asyncio.wait_for(collector.get(), 2)
    assert output.outputs[0].stop_reason == "lease_expired"
    assert publication.ended is not None and publication.ended.why is Ended.UNAVAILABLE


async def test_an_engine_error_is_raised_even_while_the_lease_is_away(
    node: Node, publication: Publication
) -> None:
    """A dead engine is no token: its error is not held back."""
    collector = Engine(publication).add(DELTA)
    node.lease(held=False)
    collector.put(RuntimeError("dead"))
    with pytest.raises(RuntimeError, match="dead"):
        await collector.get()


@pytest.mark.parametrize("kind", [DELTA, CUMULATIVE])
async def test_delivered_tokens_are_counted_by_choice(
    node: Node, publication: Publication, kind: str
) -> None:
    """The last published index is of the frames that went out, not of what the consumer holds."""
    engine = Engine(publication)
    collector = engine.add(kind, 3)
    engine.emit({"0_r-1": [7, 8], "1_r-1": [9]})
    await collector.get()
    assert publication.last_published() == {}
    publication.wrote(chunk(1), complete=False)  # one of its two frames
    assert publication.last_published() == {"1_r-1": 0}
    publication.wrote(chunk(0), complete=False)
    assert publication.last_published() == {"0_r-1": 1, "1_r-1": 0}
    engine.emit({"0_r-1": [5]})
    await collector.get()
    assert publication.last_published() == {"0_r-1": 1, "1_r-1": 0}
    publication.wrote(b"", complete=True)
    assert publication.last_published() == {"0_r-1": 2, "1_r-1": 0}
    assert publication.usage()["completion_tokens"] == 4


async def test_an_item_that_is_dequeued_ahead_is_not_counted(
    node: Node, publication: Publication
) -> None:
    """Where two prompts share a response, each has an item beside the one that is being written."""
    engines = [Engine(publication), Engine(publication)]
    collectors = [each.add(DELTA, name=f"cmpl-r-{i}") for i, each in enumerate(engines)]
    for tokens in ([7, 8], [9]):
        engines[1].emit({"cmpl-r-1": tokens})
        await collectors[1].get()
    assert publication.last_published() == {}
    publication.wrote(chunk(1), complete=False)
    assert publication.last_published() == {"cmpl-r-1": 1}
    publication.wrote(chunk(1), complete=False)
    assert publication.last_published() == {"cmpl-r-1": 2}
    engines[0].emit({"cmpl-r-0": [3]})
    await collectors[0].get()
    publication.wrote(chunk(0), complete=False)
    assert publication.last_published() == {"cmpl-r-0": 0, "cmpl-r-1": 2}


async def test_stale_output_is_dropped_before_it_is_detokenized(
    node: Node, publication: Publication
) -> None:
    """G4: the detokenizer never sees a retired version's tokens, not even to flush an interval."""
    engine = Engine(publication, stream_interval=4)
    engine.add(DELTA)
    engine.emit({"r-1": [1]})
    engine.emit({"r-1": [2]})
    state = engine.processor.request_states["r-1"]
    node.advance()
    engine.emit({"r-1": [3]}, finish=True)
    assert list(state.detokenizer.output_token_ids) == [1, 2]
    assert publication.ended is not None
    assert not engine.processor.has_unfinished_requests()  # its last output was dropped: no leak


async def test_a_request_added_after_the_end_is_aborted(
    node: Node, publication: Publication
) -> None:
    """Retired between admission and the engine: nobody else would ever end it."""
    node.advance()
    node.switch()
    collector = Engine(publication).add(DELTA)
    assert (await collector.get()).finished
    await asyncio.sleep(0)
    assert node.aborted == [["r-1"]]


async def test_output_of_others_passes_the_same_step(node: Node, publication: Publication) -> None:
    """G4 drops by request: an untagged one in the same batch goes on."""
    from retire.engine.seams.output import publishable

    engine = Engine(publication)
    engine.add(DELTA)
    plain = Engine(None)
    other = plain.add(DELTA)
    node.advance()
    plain.emit({"r-1": [4]})
    assert list(other.get_nowait().outputs[0].token_ids) == [4]
    unknown = type("Output", (), {"request_id": "nobody"})()
    assert publishable(engine.processor, unknown)


def _request(*, extra: Any = None, salt: str | None = None, pooling: bool = False) -> Any:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine import EngineCoreRequest

    return EngineCoreRequest(
        request_id="r", prompt_token_ids=[1], mm_features=None,
        sampling_params=None if pooling else SamplingParams(extra_args=extra),
        pooling_params=None, arrival_time=0.0, lora_request=None, cache_salt=salt,
        data_parallel_rank=None,
    )  # fmt: skip


def test_a_tag_is_stamped_and_read_back(node: Node) -> None:
    """The engine reads the authority that admission gave, whatever else rides along."""
    from retire.engine.seams.tags import stamp
    from retire.engine.tag import Tag

    tag = node.tag()
    request = _request(extra={"retire": {"tenant": "victim"}, "other": 1}, salt="mine")
    stamp(request, tag, "std")
    assert Tag.of(request.sampling_params) == tag
    assert request.sampling_params.extra_args["other"] == 1
    assert request.cache_salt == "retire:default:std:mine"


def test_a_forged_tag_is_stripped(node: Node) -> None:
    """vllm_xargs cannot give an untagged request an authority, nor touch the caller's dict."""
    from retire.engine.seams.tags import stamp

    del node
    forged = {"retire": {"tenant": "victim", "scope": "s"}, "other": 1}
    request = _request(extra=forged)
    stamp(request, None, "std")
    assert request.sampling_params.extra_args == {"other": 1}
    assert "retire" in forged


def test_versions_of_a_scope_share_their_prefix_and_tenants_do_not(node: Node) -> None:
    """The salt holds the tenant and the mode, never the epoch."""
    from retire.engine.seams.tags import cache_salt, stamp

    salts = []
    for version in (node.tag(), node.tag(V2)):
        request = _request()
        stamp(request, version, "bi")
        salts.append(request.cache_salt)
    assert salts == ["retire:default:bi"] * 2
    assert cache_salt("other", "bi", None) not in salts
    assert KEY.tenant == "default"


@pytest.mark.parametrize("salt", ["retire:default:std", "retire:"])
def test_an_untagged_request_cannot_enter_a_tenants_cache(node: Node, salt: str) -> None:
    """A client that guesses our salt is refused, with the field's name."""
    from retire.engine.seams.tags import stamp

    del node
    with pytest.raises(ValueError, match="cache_salt"):
        stamp(_request(salt=salt), None, "std")


def test_a_pooling_request_cannot_be_tagged(node: Node) -> None:
    """Nothing of a scope may pass ungated: what cannot carry a tag is refused."""
    from retire.engine.seams.tags import stamp

    with pytest.raises(ValueError, match="x-retire-scope"):
        stamp(_request(pooling=True), node.tag(), "std")


async def test_beam_search_is_refused_for_a_scope_only(publication: Publication) -> None:
    """Its beams are requests without a version; plain requests keep it."""
    from vllm.entrypoints.generate.beam_search.online import BeamSearchOnlineMixin

    from retire.engine.seams import tags

    tags.install()
    token = CURRENT.set(publication)
    with pytest.raises(ValueError, match="use_beam_search"):
        BeamSearchOnlineMixin.beam_search(object())
    CURRENT.reset(token)
    with pytest.raises(TypeError):  # the original complains of its own missing arguments
        BeamSearchOnlineMixin.beam_search(object())
