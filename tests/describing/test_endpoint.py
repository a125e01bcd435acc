"""A language model behind an address: what is sent, what is taken for an answer, and everything that goes wrong."""

from __future__ import annotations

import json
import signal
import threading
import time
from typing import Any
from urllib.parse import quote

import pytest

from ffnmem.core.errors import EndpointError, InputError
from ffnmem.describing import Endpoint, endpoint
from ffnmem.describing.answers import Answers, Question

from ..helpers import refuses
from .endpoints import said, sending, serving

CHAT = [{"role": "user", "content": "?"}]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "PAUSE", 0.01)


def test_what_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "sk-secret")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # this machine is not behind it
    with serving(lambda number, body: said("words")) as server:
        asked = Endpoint(server.url + "/", "m", key_variable="A_KEY", options={"temperature": None, "top_p": 0.5})
        assert asked(CHAT) == "words"
    (request,) = server.requests
    assert request["path"] == "/v1/chat/completions"
    assert request["body"] == {"model": "m", "messages": CHAT, "max_tokens": 512, "top_p": 0.5}
    assert request["headers"]["Authorization"] == "Bearer sk-secret"
    assert "sk-secret" not in repr(asked) + json.dumps(asked.identity()) + asked.name


def test_without_a_key_none_is_sent() -> None:
    with serving(lambda number, body: said("words")) as server:
        Endpoint(server.url, "m")(CHAT)
    assert "Authorization" not in server.requests[0]["headers"]


@pytest.mark.parametrize("reply", [said(None), said("I", finish_reason="content_filter"), said(None, refusal="no")])
def test_a_refusal_is_an_empty_answer(reply: Any) -> None:
    with serving(lambda number, body: reply) as server:
        assert Endpoint(server.url, "m")(CHAT) == ""
    assert len(server.requests) == 1


def test_a_key_that_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Said at once, with what the server says, and without the key that it repeats."""
    monkeypatch.setenv("A_KEY", "sk-secret")
    wrong = json.dumps({"error": {"message": "bad key sk-secret\nsee site"}}).encode()
    with serving(lambda number, body: (401, {}, wrong)) as server:
        with refuses(EndpointError, ConnectionError, "401", "A_KEY", "bad key …") as _:
            Endpoint(server.url, "m", key_variable="A_KEY")(CHAT)
        with refuses(EndpointError, ConnectionError, "401", "no key was sent"):
            Endpoint(server.url, "m")(CHAT)
    assert len(server.requests) == 2


KEY = "sk-a+b/c="
HOW = {
    "plain": KEY,
    "percent": quote(KEY, safe=""),
    "each": "".join(f"%{ord(one):02x}" for one in KEY),
    "twice": quote(quote(KEY, safe=""), safe=""),
    "JSON": "".join(f"\\u{ord(one):04x}" for one in KEY),
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    "reply",
    [
        "HTTP/1.1 401 no {}\r\n\r\n",
        "HTTP/1.1 500 no\r\n\r\n" + " " * 4090 + "{}",
        "HTTP/1.1 403 no\r\n\r\n" + "x" * 295 + "{}",
        'HTTP/1.1 429 no\r\n\r\n{{"error": {{"message": "{}"}}}}',
        "no {}\r\n\r\n",
        'HTTP/1.1 200 OK\r\n\r\n{{"choices": [{{"message": {{"content": "{}"}}}}]}}',
    ],
)
def test_a_key_that_comes_back(monkeypatch: pytest.MonkeyPatch, reply: str, how: str) -> None:
    """It would stand in a message, a table, a log or the file of answers."""
    monkeypatch.setenv("A_KEY", KEY)
    with sending(reply.format(HOW[how]).encode()) as (url, asked):
        try:
            said = Endpoint(url, "m", key_variable="A_KEY", retries=0)(CHAT)
        except EndpointError as error:
            said = str(error)
    assert f"Bearer {KEY}".encode() in asked[0]
    assert "…" in said
    assert HOW[how][:6] not in said


@pytest.mark.parametrize(
    "first", [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"HTTP/1.1 401 no\r\n\r\n"]
)
def test_one_deadline(first: bytes) -> None:
    """Each part began the wait anew: ten minutes where two seconds were asked for. It is not asked again, either."""
    with sending(first, b"1\r\na\r\n") as (url, asked):
        began = time.monotonic()
        with refuses(EndpointError, ConnectionError, "did not answer within 0.3 s"):
            Endpoint(url, "m", timeout=0.3)(CHAT)
        assert time.monotonic() - began < 1.5
        assert len(asked) == 1


def test_an_interrupt_ends_it(request: pytest.FixtureRequest) -> None:
    """The first Ctrl-C: it waited for all that had been asked, and for their repetitions."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    with sending(b"HTTP/1.1 200 OK\r\nX-Long: ", b"a") as (url, asked):
        began = time.monotonic()
        questions = [
            Question("description", 0, number, [{"role": "user", "content": f"{number}"}]) for number in (1, 2)
        ]
        timer = threading.Timer(0.3, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            Answers(None).ask(Endpoint(url, "m", together=1), questions)
        assert time.monotonic() - began < 2
        assert len(asked) == 1
    assert all(thread.daemon for thread in threading.enumerate() if thread not in (threading.main_thread(), timer))


def test_too_many_questions() -> None:
    """429: asked again after as long as the server says, in seconds or as a date; not for ever."""
    began = time.monotonic()
    with serving(lambda number, body: said("words") if number else (429, {"Retry-After": "0.3"}, b"slow")) as server:
        assert Endpoint(server.url, "m")(CHAT) == "words"
    assert time.monotonic() - began > 0.3
    later = {"Retry-After": "3600"}
    with serving(lambda number, body: (429, later, b"")) as server, refuses(EndpointError, OSError, "429", "3600 s"):
        Endpoint(server.url, "m")(CHAT)
    assert len(server.requests) == 1
    date = {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}
    with serving(lambda number, body: (503, date, b"")) as server, refuses(EndpointError, OSError, "503", "3 times"):
        Endpoint(server.url, "m", retries=2)(CHAT)
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    "body", [b"<html>", b'{"choices": []}', b'{"choices": [{"message": {"content": 3}}]}', b"\xff"]
)
def test_what_is_no_chat_completion(body: bytes) -> None:
    with serving(lambda number, _: said("words") if number else (200, {}, body)) as server:
        assert Endpoint(server.url, "m")(CHAT) == "words"
    with serving(lambda number, _: (200, {}, body)) as server, refuses(EndpointError, OSError, "no chat completion"):
        Endpoint(server.url, "m", retries=1)(CHAT)
    assert len(server.requests) == 2


def test_a_server_that_does_not_answer() -> None:
    def slow(number: int, body: dict[str, Any]) -> Any:
        time.sleep(0.5)
        return said("late")

    with serving(slow) as server, refuses(EndpointError, ConnectionError, "did not answer within 0.1 s"):
        Endpoint(server.url, "m", timeout=0.1)(CHAT)
    assert len(server.requests) == 1
    with refuses(EndpointError, ConnectionError, "cannot be reached", "refused"):
        Endpoint(server.url, "m", retries=1)(CHAT)


def test_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key would follow where an address leads."""
    monkeypatch.setenv("A_KEY", "sk-secret")
    with (
        serving(lambda number, body: said("words")) as other,
        serving(lambda number, body: (307, {"Location": other.url}, b"")) as server,
        refuses(EndpointError, ConnectionError, "307", "leads elsewhere"),
    ):
        Endpoint(server.url, "m", key_variable="A_KEY")(CHAT)
    assert not other.requests


def test_an_answer_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "LARGEST", 1000)
    long = said("x" * 2000)
    with serving(lambda number, body: long) as server, refuses(EndpointError, OSError, "more than 1,000 bytes"):
        Endpoint(server.url, "m", retries=0)(CHAT)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"url": "localhost:8080"}, ("localhost:8080", "http://127.0.0.1:8080/v1")),
        ({"url": "http://me:sk-secret@host/v1"}, ("…@host", "key_variable")),
        ({"url": "https://host/v1?key=sk-secret"}, ("https://host/v1", "key_variable")),
        ({"url": "http://host:notaport/v1"}, ("notaport",)),
        ({"url": "file:///etc/passwd"}, ("file:///etc/passwd",)),
        ({"url": "http://example.org/v1", "key_variable": "A_KEY"}, ("unencrypted", "example.org")),
        ({"model": " "}, ("model",)),
        ({"timeout": 0.0}, ("timeout", "0")),
        ({"retries": -1}, ("retries", "-1")),
        ({"options": {"x": object()}}, ("options",)),
    ],
)
def test_mistakes(given: dict[str, Any], named: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as caught:
        Endpoint(**{"url": "http://127.0.0.1:1/v1", "model": "m", **given})
    message = str(caught.value)
    assert all(name in message for name in named), message
    assert "sk-secret" not in message


def test_a_key_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with refuses(InputError, ValueError, "NO_SUCH_KEY"):
        Endpoint("http://127.0.0.1:1/v1", "m", key_variable="NO_SUCH_KEY")(CHAT)
