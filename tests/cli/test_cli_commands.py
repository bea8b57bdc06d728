"""The command line: bad values and failures are one clear line and a status, never a traceback."""

import json
import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from retire.cli import app
from retire.cli.stack import device, ports
from retire.cli.stack.children import StackOptions
from retire.cli.stack.layout import StateInUse, StateLock, layout_of
from retire.protocol.errors import InvalidField


def retire(monkeypatch, capsys, *arguments: str) -> tuple[int, str, str]:
    """Run a command in this process: (status, stdout, stderr)."""
    monkeypatch.setattr(sys, "argv", ["retire", *arguments])
    with pytest.raises(SystemExit) as ended:
        app.run()
    out = capsys.readouterr()
    return int(ended.value.code or 0), out.out, out.err


@pytest.fixture
def api():
    """A server that answers every call with what the test put into ``answers[path]``."""
    answers: dict[str, tuple[int, object]] = {}
    got: list[tuple[str, dict | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            size = int(self.headers.get("content-length") or 0)
            got.append((self.path, json.loads(self.rfile.read(size)) if size else None))
            status, body = answers[self.path]
            raw = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_POST = do_GET

        def log_message(self, format, *args):
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", answers, got
        server.shutdown()
        thread.join()


RECEIPT = {
    "schema": 1, "tenant": "default", "scope": "a", "from_version": "1.4", "to_version": "1.5",
    "stages_ms": {"commit": 0.4}, "gates": [], "participants": [],
    "requests": [{"request_id": "r1", "state": "decode", "prompt_tokens": 9, "frontier_tokens": 8,
                  "last_published_index": 3}],
    "residual_ms": 1.5,
    "fence": {"branch": "layer_stop", "predicted_ms": 200.0},
    "frontier_tokens": 64, "inheritable_tokens": 50, "certified_tokens": 48,
    "first_difference": 50, "stop_reason": "block_boundary", "pin": None,
    "successor_request_id": "r2", "error": None, "trace_id": None, "replayed": False, "extra": {},
}  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("supersede", "a", "--expected", "four"), '--expected must be written "term.epoch"'),
        (("cancel", "a", "--expected", "1"), '--expected must be written "term.epoch"'),
        (("status", "--url", "localhost"), "url must be an http:// or https:// address"),
        (("status", "a\nb"), "scope must be printable characters only"),
        (("serve", "--model", "m", "--port", "70000"), "--port must be 0 to 65535"),
        (("serve", "--model", "m", "--log-format", "xml"), "--log-format must be plain or json"),
        (
            ("serve", "--model", "m", "--port", "0", "--tenant-quota", "-1"),
            "--tenant-quota must be",
        ),
        (
            ("serve", "--model", "m", "--port", "0", "--", "--port", "1"),
            "-- --port must be left to",
        ),
        (("serve", "--model", "m", "--port", "0", "--", "--scheduler_cls=x"), "-- --scheduler-cls"),
    ],
)
def test_a_bad_value_is_one_line_and_status_2(monkeypatch, capsys, arguments, said) -> None:
    """The line names the option and what it must be."""
    status, _, err = retire(monkeypatch, capsys, *arguments)
    assert status == 2
    assert said in err
    assert err.count("\n") == 1


def test_an_unreadable_request_file_names_it(monkeypatch, capsys, tmp_path) -> None:
    """A missing file, broken JSON and JSON that is no object are told apart."""
    missing, broken, array = (tmp_path / name for name in ("missing", "broken", "array"))
    broken.write_text("{")
    array.write_text("[]")
    for path, said in ((missing, "No such file"), (broken, "JSON"), (array, "a JSON object")):
        status, _, err = retire(
            monkeypatch, capsys, "supersede", "a", "--expected", "1.0", "--request", str(path)
        )
        assert status == 2
        assert said in err


def test_no_server_is_one_line_and_status_1(monkeypatch, capsys) -> None:
    """The line names the address that did not answer."""
    monkeypatch.setenv("RETIRE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("retire.client.retry.RetryPolicy.wait_s", lambda *_: None)
    status, _, err = retire(monkeypatch, capsys, "status")
    assert status == 1
    assert "http://127.0.0.1:9/v1/scopes" in err
    assert err.count("\n") == 1


def test_an_error_of_the_server_is_its_message(monkeypatch, capsys, api) -> None:
    """A stale expected version prints the server's own words, which name the current one."""
    url, answers, _ = api
    wire = {"code": "version_conflict", "message": "expected 1.0 is stale; current is 1.4"}
    answers["/v1/scopes/a/cancel"] = (409, {"error": wire})
    result = retire(monkeypatch, capsys, "cancel", "a", "--expected", "1.0", "--url", url)
    assert result == (1, "", "retire: expected 1.0 is stale; current is 1.4\n")


def test_status_is_a_table_or_json(monkeypatch, capsys, api) -> None:
    """People get a table, programs get what the server said."""
    url, answers, _ = api
    scope = {"scope": "plan", "tenant": "t", "version": "1.4", "phase": "running", "requests": []}
    answers["/v1/scopes"] = (200, {"scopes": [{**scope, "pinned_blocks": 3}]})
    answers["/v1/scopes/plan"] = (200, scope)
    status, out, _ = retire(monkeypatch, capsys, "status", "--url", url)
    assert status == 0
    assert all(word in out for word in ("plan", "1.4", "running", "3"))
    _, out, _ = retire(monkeypatch, capsys, "status", "plan", "--json", "--url", url)
    assert json.loads(out) == {"scopes": [scope]}


def test_supersede_prints_receipt_and_answer(monkeypatch, capsys, api, tmp_path) -> None:
    """The body comes from the file; the receipt is printed before the answer."""
    url, answers, got = api
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"prompt": "p", "stream": False}))
    answer = {"choices": [{"text": "the new plan"}]}
    answers["/v1/scopes/a/supersede"] = (200, {"receipt": RECEIPT, "response": answer})
    arguments = ("supersede", "a", "--expected", "1.4", "--request", str(body), "--url", url)
    status, out, _ = retire(monkeypatch, capsys, *arguments)
    assert status == 0
    assert out.index("1.4 -> 1.5") < out.index("the new plan")
    assert "48 of 50 common tokens" in out and "last published index 3" in out
    assert got[0][1]["request"] == {"prompt": "p", "stream": False}
    _, out, _ = retire(monkeypatch, capsys, *arguments, "--json")
    first, second = out.splitlines()
    assert (json.loads(first)["receipt"], json.loads(second)) == (RECEIPT, answer)


def test_cancel_pause_and_resume(monkeypatch, capsys, api) -> None:
    """Each says what is now the case."""
    url, answers, got = api
    answers["/v1/scopes/a/cancel"] = (200, {"receipt": RECEIPT, "version": "1.5"})
    for verb in ("pause", "resume"):
        answers[f"/v1/scopes/a/{verb}"] = (200, {"receipt": None, "version": "1.4"})
    for verb, said in (("pause", "paused at 1.4"), ("resume", "resumed at 1.4")):
        _, out, _ = retire(monkeypatch, capsys, verb, "a", "--expected", "1.4", "--url", url)
        assert out == f"a {said}\n"
    _, out, _ = retire(monkeypatch, capsys, "cancel", "a", "--expected", "1.4", "--url", url)
    assert "a cancelled at 1.5" in out
    assert [body for _, body in got] == [{"expected_version": "1.4"}] * 3


def test_a_busy_port_is_refused_before_anything_starts(monkeypatch, capsys, tmp_path) -> None:
    """One line that names host and port; no state folder is made."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        state = tmp_path / "state"
        arguments = ("serve", "--model", "m", "--port", str(port), "--state-dir", str(state))
        status, out, err = retire(monkeypatch, capsys, *arguments)
    assert (status, out) == (1, "")
    assert (
        f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another --port" in err
    )
    assert not state.exists()


def test_a_free_port_is_kept_and_zero_finds_one() -> None:
    """Port 0 gives a free one; a host that is none of ours is refused."""
    port = ports.claim("127.0.0.1", 0)
    assert port > 0
    assert ports.claim("127.0.0.1", port) == port
    with pytest.raises(ports.PortBusy):
        ports.claim("192.0.2.1", 0)
    with pytest.raises(InvalidField, match="--host"):
        ports.claim("no such host", 0)


def test_one_owner_of_a_state_folder(tmp_path) -> None:
    """A second stack is refused and told the first one's pid; a dead one's lock is free."""
    layout = layout_of(tmp_path / "state", {})
    layout.create()
    code = (
        "import sys, time; from pathlib import Path; from retire.cli.stack.layout import *\n"
        "with StateLock(layout_of(Path(sys.argv[1]), {})):\n"
        " print('held', flush=True); time.sleep(99)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code, str(layout.state)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    with owner.stdout:
        assert owner.stdout.readline() == "held\n"
    with pytest.raises(StateInUse, match=f"in use by pid {owner.pid};"), StateLock(layout):
        pass
    owner.kill()
    owner.wait()
    with StateLock(layout):
        assert layout.pidfile.read_text() == f"{os.getpid()}\n"


def test_folders_are_owner_only(tmp_path) -> None:
    """New ones are made so; one that others may read is refused with the fix."""
    layout = layout_of(tmp_path / "new", {})
    layout.create()
    assert layout.state.stat().st_mode & 0o777 == 0o700
    assert layout.run.stat().st_mode & 0o777 == 0o700
    layout.run.rmdir()
    layout.state.chmod(0o755)
    with pytest.raises(InvalidField, match="owner-only \\(chmod 700"):
        layout.create()


def test_a_path_too_long_for_sockets_is_refused(tmp_path) -> None:
    """Before a socket fails with an error nobody understands."""
    with pytest.raises(InvalidField, match="--state-dir must be shorter"):
        layout_of(tmp_path / ("x" * 120), {})


def test_two_state_folders_never_share_a_run_folder(tmp_path) -> None:
    """Sockets and mailbox of one stack are not another's; the same folder finds its own again."""
    one, two = layout_of(tmp_path / "a", {}), layout_of(tmp_path / "b", {})
    assert one.run != two.run
    assert layout_of(tmp_path / "a", {}) == one
    assert layout_of(None, {"XDG_STATE_HOME": str(tmp_path)}).state == tmp_path / "retire"


def test_cpu_defaults_yield_to_the_caller() -> None:
    """What the caller set, as an argument or in the environment, is left alone; a GPU is too."""
    cpu = device.Machine(cpu_build=True, cores=4, memory_gib=24)
    found = device.engine_defaults(cpu, (), {})
    assert found.args == ("--dtype", "float32")
    assert found.env["OMP_NUM_THREADS"] == "4"
    assert found.env["VLLM_CPU_KVCACHE_SPACE"] == "6"
    mine = device.engine_defaults(cpu, ("--dtype=bfloat16",), {"OMP_NUM_THREADS": "1"})
    assert mine.args == ()
    assert "OMP_NUM_THREADS" not in mine.env
    gpu = device.Machine(cpu_build=False, cores=4, memory_gib=24)
    assert device.engine_defaults(gpu, (), {}) == device.EngineDefaults((), {})


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:1"),
        ("0.0.0.0", "http://127.0.0.1:1"),
        ("::1", "http://[::1]:1"),
    ],
)
def test_the_address_shown_can_be_opened(host, url) -> None:
    """A wildcard address is no address; IPv6 stands in brackets."""
    options = StackOptions("m", host, 1, "plain", None, None)
    assert options.url == url
