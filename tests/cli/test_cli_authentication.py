"""Tokens on the command line: what serve hands to its children, and what a refusal says."""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from retire.cli import app
from retire.cli.stack import children
from retire.cli.stack.children import StackOptions
from retire.cli.stack.device import EngineDefaults
from retire.cli.stack.layout import layout_of
from retire.protocol.errors import InvalidField


def run(monkeypatch, capsys, *arguments: str) -> tuple[int, str]:
    """(status, stderr) of a command."""
    monkeypatch.setattr(sys, "argv", ["retire", *arguments])
    with pytest.raises(SystemExit) as ended:
        app.run()
    return int(ended.value.code or 0), capsys.readouterr().err


@pytest.fixture
def refusing():
    """A server that refuses every call with what the test sets; keeps the headers."""
    said: dict[str, object] = {"status": 401, "body": {}}
    got: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            got.append({name.lower(): value for name, value in self.headers.items()})
            raw = json.dumps(said["body"]).encode()
            self.send_response(said["status"])
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, format, *args):
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", said, got
        server.shutdown()
        thread.join()


def test_a_refused_token_says_what_to_set(refusing, monkeypatch, capsys) -> None:
    """One line with the status and the fix; the token is not in it."""
    url, said, got = refusing
    monkeypatch.setenv("RETIRE_TOKEN", "from-the-environment")
    message = "the bearer token is not in the token file"
    said["body"] = {"error": {"code": "unauthenticated", "message": message}}
    status, err = run(monkeypatch, capsys, "status", "--url", url)
    assert (status, err) == (
        1, f"retire: not authenticated (401): {message}; set --token or RETIRE_TOKEN\n"
    )  # fmt: skip
    run(monkeypatch, capsys, "status", "--url", url, "--token", "given")
    sent = [headers["authorization"] for headers in got]
    assert sent == ["Bearer from-the-environment", "Bearer given"]


def test_another_tenant_says_that_it_is_not_allowed(refusing, monkeypatch, capsys) -> None:
    """403 is told apart from 401."""
    url, said, _ = refusing
    said |= {"status": 403, "body": {"error": {"code": "forbidden", "message": "not yours"}}}
    status, err = run(monkeypatch, capsys, "status", "--url", url, "--tenant", "b")
    assert (status, err) == (1, "retire: not allowed (403): not yours\n")


def test_serve_hands_authentication_to_both_children(tmp_path) -> None:
    """The sidecar gets the file, the engine only the word; without it both are told none."""
    tokens = tmp_path / "tokens.json"
    tokens.write_text("{}")
    layout = layout_of(tmp_path / "s", {})
    plain = StackOptions("m", "127.0.0.1", 1, "plain", None, None)
    static = StackOptions(
        "m", "127.0.0.1", 1, "plain", None, None, auth="static", tokens_file=tokens
    )
    for options, word in ((plain, "none"), (static, "static")):
        sidecar = children.sidecar(options, layout).env
        engine = children.engine(options, layout, EngineDefaults((), {})).env
        assert (sidecar["RETIRE_AUTH"], engine["RETIRE_AUTH"]) == (word, word)
        assert "RETIRE_TOKENS_FILE" not in engine
    assert children.sidecar(static, layout).env["RETIRE_TOKENS_FILE"] == str(tokens)


@pytest.mark.parametrize(
    ("auth", "file", "says"),
    [
        ("basic", None, "--auth must be one of none, static, tokenreview; got 'basic'"),
        ("static", None, "--tokens-file must be a file with --auth static"),
        ("none", "tokens.json", "--tokens-file must be a file with --auth static alone"),
        ("static", "nowhere.json", "--tokens-file must be a file of tokens as JSON"),
    ],
)
def test_serve_refuses_what_cannot_be_meant(tmp_path, auth, file, says) -> None:
    """Before anything is started; the message names the option."""
    (tmp_path / "tokens.json").write_text("{}")
    path = tmp_path / file if file else None
    with pytest.raises(InvalidField) as raised:
        StackOptions("m", "127.0.0.1", 1, "plain", None, None, auth=auth, tokens_file=path)
    assert str(raised.value).startswith(says)
