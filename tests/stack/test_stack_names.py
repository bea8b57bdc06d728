"""Names of scopes on the wire: unicode, slashes, oversized ones, and how the server survives them.

A header carries the name as UTF-8 bytes (RFC 9110 lets a field hold them; the ``UTF-8''...`` form
of RFC 8187 is for parameters and is *not* decoded); a path carries it percent-encoded, slash too.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import pytest

from bench.stack_streams import COMPLETIONS, Agent

if TYPE_CHECKING:
    import httpx

    from bench.stack import Stack

MEGABYTE = 1 << 20
NAMES = [
    "plan/7",
    "plän-✓",
    "日本語",
    "a b",
    "a/../b",
    "%2F",
    "a%",
    "supersede",
    "x/cancel",
    "?q#f",
]


def tagged(stack: Stack, name: bytes) -> httpx.Response:
    """One token under a scope whose name is sent as it is."""
    headers = {b"x-retire-scope": name}
    return stack.http.post(COMPLETIONS, json=stack.body("x", max_tokens=1), headers=headers)


def raw(stack: Stack, head: bytes) -> bytes:
    """What the server says to these bytes; empty when it hangs up."""
    address = urlsplit(stack.url)
    with socket.create_connection((address.hostname, address.port), timeout=30) as wire:
        try:
            wire.sendall(head)
            return b"".join(iter(lambda: wire.recv(65536), b""))
        except (ConnectionResetError, BrokenPipeError):
            return b""


def field_error(answer: httpx.Response) -> tuple[int, str, str]:
    """Status, field and message of a refused name."""
    error = answer.json()["error"]
    assert error["code"] == "invalid_field"
    return answer.status_code, error["field"], error["message"]


@pytest.mark.parametrize("name", NAMES)
def test_any_printable_name_works_in_header_and_path(stack: Stack, name: str) -> None:
    """Opened through the header, read and superseded through the path: it is one scope."""
    name += f"-{id(stack)}"
    opened = tagged(stack, name.encode())
    assert opened.status_code == 200
    path = f"/v1/scopes/{quote(name, safe='')}"
    view = stack.http.get(path).json()
    assert (view["scope"], view["version"]) == (name, opened.headers["x-retire-version"])
    body = {"expected_version": view["version"]}
    receipt = stack.http.post(f"{path}/supersede", json=body).json()["receipt"]
    assert receipt["scope"] == name
    assert stack.http.get(path).json()["version"] == receipt["to_version"] != view["version"]


def test_a_slash_and_its_escape_are_two_names(stack: Stack) -> None:
    """``a/b`` sent as ``a%2Fb`` in a path, or as it is, is one scope; ``a%2Fb`` is another."""
    plain, escaped = f"s/{id(stack)}", f"s%2F{id(stack)}"
    assert tagged(stack, plain.encode()).status_code == 200
    for path in (f"/v1/scopes/{plain}", f"/v1/scopes/{quote(plain, safe='')}"):
        assert stack.http.get(path).json()["scope"] == plain
    answer = stack.http.get(f"/v1/scopes/{quote(escaped, safe='')}")
    assert answer.status_code == 404
    assert repr(escaped) in answer.json()["error"]["message"]


def test_a_header_is_utf8_and_nothing_else(stack: Stack) -> None:
    """Latin-1 bytes are refused; the form of RFC 8187 is a name like any other."""
    status, field, message = field_error(tagged(stack, "plän".encode("latin-1")))
    assert (status, field) == (400, "x-retire-scope")
    assert message == "x-retire-scope must be UTF-8 (or percent-encode it in the path); got 'plän'"
    literal = f"UTF-8''pl%C3%A4n-{id(stack)}"
    assert tagged(stack, literal.encode()).status_code == 200
    assert stack.http.get(f"/v1/scopes/{quote(literal, safe='')}").json()["scope"] == literal


def test_a_path_is_percent_encoded_utf8(stack: Stack) -> None:
    """Bytes that are no UTF-8 are refused by name."""
    refused = field_error(stack.http.get("/v1/scopes/%ff"))
    assert refused == (400, "scope", "scope must be percent-encoded UTF-8 in the path; got '%ff'")


@pytest.mark.parametrize("name", ["tab\t", "nul\0", "\u202ertl", "a\u200db", "line\n", ".", ".."])
def test_a_name_that_cannot_be_shown_or_addressed_is_refused(stack: Stack, name: str) -> None:
    """400: control and invisible characters mislead people, dot segments vanish from a URL."""
    escaped = "".join(f"%{byte:02X}" for byte in name.encode())
    head = f"GET /v1/scopes/{escaped} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    answer = raw(stack, head.encode())
    assert answer.startswith(b"HTTP/1.1 400") and b'"field":"scope"' in answer
    if not name.isascii() or name.startswith("."):
        status, field, _ = field_error(tagged(stack, name.encode()))
        assert (status, field) == (400, "x-retire-scope")


@pytest.mark.parametrize(("size", "fits"), [(255, True), (256, False), (MEGABYTE, False)])
def test_a_name_in_a_header_has_at_most_255_bytes(stack: Stack, size: int, fits: bool) -> None:
    """A longer one, even of a megabyte, is a 400 that does not repeat it."""
    answer = tagged(stack, b"x" * size)
    if fits:
        assert answer.status_code == 200
        return
    status, field, message = field_error(answer)
    assert (status, field) == (400, "x-retire-scope")
    shown = "'" + "x" * 119 + f"... ({size + 2} characters)"
    assert message == f"x-retire-scope must be 1 to 255 bytes of UTF-8; got {shown}"


@pytest.mark.parametrize("size", [256, 60_000, MEGABYTE])
def test_a_name_in_a_path_has_at_most_255_bytes(stack: Stack, size: int) -> None:
    """The same in a path; the server may hang up on a URL of a megabyte, but it lives on."""
    for method, verb in (("GET", ""), ("POST", "/supersede")):
        body = b'{"expected_version": "1.0"}'
        head = (
            f"{method} /v1/scopes/{'x' * size}{verb} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        answer = raw(stack, head.encode() + body)
        if size < MEGABYTE or answer:
            assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 414")), answer[:200]
    assert stack.http.get("/health").status_code == 200


def test_oversized_headers_do_not_hurt_the_server(stack: Stack) -> None:
    """Megabytes of headers, thousands of them, an endless one: an answer or a hang-up, no more."""
    agent = Agent.new(stack, "headers")
    version = agent.opened()
    start = b"GET /v1/scopes HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    many = b"".join(b"x-junk-%d: y\r\n" % i for i in range(20_000))
    for head in (
        start + b"x-junk: " + b"y" * (4 * MEGABYTE) + b"\r\n\r\n",
        start + many + b"\r\n",
        start + b"x-junk: " + b"y" * MEGABYTE,  # never ends: we hang up
    ):
        answer = raw(stack, head) if head.endswith(b"\r\n\r\n") else hang_up(stack, head)
        assert not answer or answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 4")), answer[:200]
    assert stack.http.get("/health").status_code == 200
    assert agent.version == version


def hang_up(stack: Stack, head: bytes) -> bytes:
    """Send bytes and leave without waiting."""
    address = urlsplit(stack.url)
    with socket.create_connection((address.hostname, address.port), timeout=30) as wire:
        wire.sendall(head)
    return b""
