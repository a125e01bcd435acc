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
from .endpoints import Reply, said, sending, serving

CHAT = [{"role": "user", "content": "?"}]
KEY = "sk-a+b/c="


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a key in the environment; answers of more than 1,000 bytes are too long."""
    monkeypatch.setattr(endpoint, "PAUSE", 0.01)
    monkeypatch.setattr(endpoint, "LARGEST", 1000)
    monkeypatch.setenv("A_KEY", KEY)
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)


def test_what_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # this machine is not behind it
    with serving(lambda number, body: said("words")) as server:
        asked = Endpoint(server.url + "/", "m", key_variable="A_KEY", options={"temperature": None, "top_p": 0.5})
        assert asked(CHAT) == Endpoint(server.url, "m")(CHAT) == "words"
    request, without = server.requests
    assert request["path"] == "/v1/chat/completions"
    assert request["body"] == {"model": "m", "messages": CHAT, "max_tokens": 512, "top_p": 0.5}
    assert request["headers"]["Authorization"] == f"Bearer {KEY}"
    assert "Authorization" not in without["headers"]
    assert without["body"]["temperature"] == 0
    assert KEY not in repr(asked) + json.dumps(asked.identity()) + asked.name


def plain(status: int, data: bytes = b"", **headers: str) -> Reply:
    return status, {name.replace("_", "-"): value for name, value in headers.items()}, data


DATE = "Wed, 21 Oct 2015 07:28:00 GMT"
ANSWERED: list[tuple[list[Reply], str, str]] = [  # what is replied one after another, the answer, or what is said
    ([said("words")], "words", ""),
    ([said(None)], "", ""),
    ([said("I", finish_reason="content_filter")], "", ""),
    ([said(None, refusal="no")], "", ""),
    ([plain(200, b'{"choices": []}'), said("words")], "words", ""),
    *(
        ([plain(200, body)] * 3, "", "no chat completion")
        for body in (b"<html>", b'{"choices": [{"message": {"content": 3}}]}', b"\xff")
    ),
    ([plain(429, b"slow"), plain(503), said("words")], "words", ""),
    ([plain(503, Retry_After=DATE)] * 3, "", "503 3 times"),
    ([plain(429, Retry_After="3600")], "", "429 3600 s"),
    ([plain(400, b'{"error": "too long"}')], "", "400 too long"),
    ([plain(401, b'{"error": {"message": "bad\\nsee site"}}')], "", "401 no key was sent bad"),
    ([plain(307, Location="/v1/elsewhere")], "", "307 leads elsewhere"),
    ([said("x" * 2000)] * 3, "", "more than 1,000 bytes"),
]


@pytest.mark.parametrize(("replies", "answer", "says"), ANSWERED, ids=range(len(ANSWERED)))
def test_what_is_taken_for_an_answer(replies: list[Reply], answer: str, says: str) -> None:
    """What may pass is asked again, and not for ever; all else is told at once."""
    with serving(lambda number, body: replies[number]) as server:
        if says:
            with refuses(EndpointError, ConnectionError, *says.split()):
                Endpoint(server.url, "m", retries=2)(CHAT)
        else:
            assert Endpoint(server.url, "m", retries=2)(CHAT) == answer
    assert len(server.requests) == len(replies)


HOW = {
    "plain": KEY,
    "percent": quote(KEY, safe=""),
    "twice": quote(quote(KEY, safe=""), safe=""),
    "JSON": "".join(f"\\u{ord(one):04x}" for one in KEY),
}
REPLIES = (
    "HTTP/1.1 401 no {}\r\n\r\n",
    "HTTP/1.1 403 no\r\n\r\n" + "x" * 295 + "{}",
    'HTTP/1.1 200 OK\r\n\r\n{{"choices": [{{"message": {{"content": "{}"}}}}]}}',
)


@pytest.mark.parametrize("how", HOW)
def test_a_key_that_comes_back(how: str) -> None:
    """It would stand in a message, a table, a log or the file of answers."""
    for reply in REPLIES:
        with sending(reply.format(HOW[how]).encode()) as (url, asked):
            try:
                said = Endpoint(url, "m", key_variable="A_KEY", retries=0)(CHAT)
            except EndpointError as error:
                said = str(error)
        assert f"Bearer {KEY}".encode() in asked[0]
        assert "…" in said
        assert HOW[how][:6] not in said
        assert ("A_KEY" in said) == (" 40" in reply)


@pytest.mark.parametrize(
    "first", [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"HTTP/1.1 401 no\r\n\r\n", b""]
)
def test_one_deadline(first: bytes) -> None:
    """Each part began the wait anew: ten minutes where two seconds were asked for. It is not asked again, either."""
    with sending(first, b"1\r\na\r\n" if first else b" ", 0.01 if first else 1.0) as (url, asked):
        began = time.monotonic()
        with refuses(EndpointError, ConnectionError, "did not answer within 0.3 s"):
            Endpoint(url, "m", timeout=0.3)(CHAT)
        assert time.monotonic() - began < 1.5
        assert len(asked) == 1


def test_the_first_interrupt_ends_it(request: pytest.FixtureRequest) -> None:
    """It waited for all that had been asked, and for their repetitions."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    questions = [Question("description", 0, number, [{"role": "user", "content": str(number)}]) for number in (1, 2)]
    with sending(b"HTTP/1.1 200 OK\r\nX-Long: ", b"a") as (url, asked):
        began, main = time.monotonic(), threading.get_ident()
        threading.Timer(0.3, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            Answers(None).ask(Endpoint(url, "m", together=1), questions)
        assert time.monotonic() - began < 2
        assert len(asked) == 1


def test_it_waits_as_long_as_the_server_says() -> None:
    began = time.monotonic()
    with serving(lambda number, body: said("words") if number else plain(429, Retry_After="0.2")) as server:
        assert Endpoint(server.url, "m")(CHAT) == "words"
    assert time.monotonic() - began > 0.2
    with refuses(EndpointError, ConnectionError, "cannot be reached", "refused"):
        Endpoint(server.url, "m", retries=1)(CHAT)  # which is gone


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"url": "localhost:8080"}, ("localhost:8080", "http://127.0.0.1:8080/v1")),
        ({"url": "http://me:sk-secret@host/v1"}, ("…@host", "key_variable")),
        ({"url": "https://host/v1?key=sk-secret"}, ("https://host/v1", "key_variable")),
        ({"url": "file:///etc/passwd"}, ("file:///etc/passwd",)),
        ({"url": "http://example.org/v1", "key_variable": "A_KEY"}, ("unencrypted", "example.org")),
        ({"key_variable": "NO_SUCH_KEY"}, ("NO_SUCH_KEY",)),
        ({"model": " "}, ("model",)),
        ({"retries": -1}, ("retries", "-1")),
        ({"options": {"x": object()}}, ("options",)),
    ],
)
def test_mistakes(given: dict[str, Any], named: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as caught:
        Endpoint(**{"url": "http://127.0.0.1:1/v1", "model": "m", **given})(CHAT)
    message = str(caught.value)
    assert all(name in message for name in named), message
    assert "sk-secret" not in message
