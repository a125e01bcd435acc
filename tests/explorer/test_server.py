"""Who is answered, and with what headers; what waits; what fails."""

from __future__ import annotations

import re
import socket
import threading
import urllib.request
from contextlib import ExitStack
from typing import Any

import pytest
from starlette.testclient import TestClient

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.core.progress import Progress
from ffnmem.explorer import server
from ffnmem.explorer.server import listening_at
from ffnmem.explorer.views import Explorer, Question
from ffnmem.pages.rendering import content_hash

from .conftest import BASE, asking, served


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 400),
        ({"host": "evil.example:8765"}, 400),
        ({"host": "localhost:8765"}, 200),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"}, 403),
        ({"sec-fetch-site": "same-origin"}, 200),
    ],
)
def test_only_this_machine_and_its_own_pages_are_answered(
    client: TestClient, headers: dict[str, str], status: int
) -> None:
    found = client.get("/", headers=headers)
    assert found.status_code == status
    assert ("The memories of" in found.text) == (status == 200)


def test_a_link_from_another_site_is_opened_only_after_a_click(client: TestClient) -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    found = client.get("/report?prompt=%3Cb%3E&by=causal", headers=headers)
    assert found.status_code == 403
    assert 'href="/report?prompt=%3Cb%3E&amp;by=causal"' in found.text


def test_nothing_is_written_and_addresses_have_a_bound(client: TestClient) -> None:
    assert client.post("/report", data={"prompt": "x"}).status_code == 405
    assert client.get("/report?prompt=" + "x" * 9000).status_code == 414
    assert client.get("/report?" + "a=1&" * 200).status_code == 422
    assert client.get("/report?prompt=%ff").status_code == 422
    assert client.get("/report?prompt=%ed%a0%80").status_code == 422  # half a character
    assert client.get("/nowhere").status_code == 404
    assert client.get("/../etc/passwd").status_code == 404


def test_only_the_explorers_own_scripts_and_styles_run(client: TestClient) -> None:
    for where in ("/", "/report?prompt=The", "/circuit?prompt=The"):
        found = client.get(where)
        policy = found.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe-eval" not in policy
        assert "'unsafe-inline'" not in policy.replace("style-src-attr 'unsafe-inline'", "")
        for kind in ("script", "style"):
            pieces = re.findall(rf"<{kind}>(.*?)</{kind}>", found.text, re.DOTALL)
            assert pieces
            assert all(content_hash(piece) in policy for piece in pieces)
        assert not re.search(r"<[^>]*\son[a-z]+=", found.text)
        assert "http://" not in found.text.replace(BASE, "").replace("http://www.w3.org", "")
        assert "https://" not in found.text
        headers = {"referrer-policy": "no-referrer", "cache-control": "no-store", "x-frame-options": "DENY",
                   "x-content-type-options": "nosniff"}  # fmt: skip
        assert headers.items() <= dict(found.headers).items()


def test_it_listens_on_this_machine_alone() -> None:
    with listening_at(0) as taken:
        assert taken.getsockname()[0] == "127.0.0.1"
        with pytest.raises(InputError, match="choose another with --port"):
            listening_at(taken.getsockname()[1])


def test_half_sent_requests_keep_nobody_waiting(tiny: fm.Model) -> None:
    with served(Explorer(tiny)) as where, ExitStack() as held:
        port = int(where.rpartition(":")[2])
        for _ in range(80):
            half = held.enter_context(socket.create_connection(("127.0.0.1", port)))
            half.sendall(b"GET / HTTP/1.1\r\nHost:")
        with urllib.request.urlopen(where, timeout=5) as found:
            assert found.status == 200


class SlowView:
    """A result that waits until it is let go, in the place of every other."""

    def __init__(self) -> None:
        self.go, self.begun, self.calls = threading.Event(), threading.Event(), 0

    def call(self, explorer: Explorer, question: Question, progress: Progress) -> Any:
        self.calls += 1
        progress("read", 1, 4)
        self.begun.set()
        self.go.wait(20)
        if question.values.get("target") == "wrong":
            raise InputError("wrong is wrong")
        if question.values.get("target") == "broken":
            raise RuntimeError("secret details")
        return fm.project(explorer.model, "0.1", k=1)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowView:
    found = SlowView()
    monkeypatch.setattr(Explorer, "call", lambda *asked: found.call(*asked))
    monkeypatch.setattr(server, "PROMPTLY", 0.01)
    return found


def wait_for(client: TestClient, page: str) -> None:
    """Until the work that a page waits for is done."""
    job = re.search(r'data-waiting="([^"]+)"', page)
    assert job
    while not client.get(f"/waiting/{job[1]}").json()["done"]:
        pass


def test_a_slow_view_says_what_it_waits_for_and_is_kept(tiny: fm.Model, slow: SlowView) -> None:
    with asking(Explorer(tiny)) as client:
        found = client.get("/report?prompt=kept")
        assert found.status_code == 202
        assert "Waiting for the result" in found.text
        assert '<noscript><meta http-equiv="refresh" content="2"></noscript>' in found.text
        slow.begun.wait(10)
        job = re.search(r'data-waiting="([^"]+)"', found.text)
        how = client.get(f"/waiting/{job[1] if job else ''}").json()
        assert (how["done"], how["words"]) == (False, "reading neurons: 1 of 4 neurons")
        slow.go.set()
        wait_for(client, found.text)
        for _ in range(2):
            found = client.get("/report?prompt=kept")
            assert (found.status_code, "what it writes" in found.text) == (200, True)
        assert slow.calls == 1


@pytest.mark.parametrize(
    ("target", "status", "says"),
    [("wrong", 422, "wrong is wrong"), ("broken", 500, "the terminal that runs the explorer says what")],
)
def test_a_failure_found_late_is_said_once_with_the_form_filled_in(
    tiny: fm.Model, slow: SlowView, target: str, status: int, says: str
) -> None:
    """A page that waits loads itself again: it would do so for ever, were the work begun anew each time."""
    where = f"/report?prompt=typed%3Ci%3E&target={target}"
    with asking(Explorer(tiny)) as client:
        waiting = client.get(where)
        slow.go.set()
        wait_for(client, waiting.text)
        found = client.get(where)
    assert found.status_code == status
    assert says in found.text
    assert "typed&lt;i&gt;" in found.text
    assert "secret details" not in found.text
    assert "Traceback" not in found.text
    assert slow.calls == 1


def test_a_file_that_takes_long_is_asked_for_again_and_no_page_is_saved_in_its_place(
    tiny: fm.Model, slow: SlowView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "FILE", 0.01)
    with asking(Explorer(tiny)) as client:
        found = client.get("/report?prompt=kept&format=csv")
        assert (found.status_code, found.headers["retry-after"]) == (503, "5")
        assert "the csv of this page is still being made" in found.text
        assert "data-waiting" not in found.text
        assert "content-disposition" not in found.headers
        monkeypatch.setattr(server, "FILE", 20.0)
        slow.go.set()
        found = client.get("/report?prompt=kept&format=csv")
        assert (found.status_code, found.text[:12]) == (200, "layer,neuron")
        assert found.headers["content-disposition"] == "attachment; filename*=UTF-8''report.csv"
        assert client.get("/report?prompt=kept&format=png").status_code == 422
        assert slow.calls == 1


def test_a_full_queue_is_a_page_of_its_own(tiny: fm.Model, slow: SlowView) -> None:
    with asking(Explorer(tiny)) as client:
        answers = [client.get(f"/report?prompt={n}").status_code for n in range(9)]
        assert answers == [202] * 9
        found = client.get("/report?prompt=more")
        assert (found.status_code, found.headers["retry-after"]) == (503, "5")
        assert "8 pages wait for the model already" in found.text
        slow.go.set()


def test_a_store_of_another_model_is_refused(tiny: fm.Model, atlas_store: fm.scanning.Store) -> None:
    with pytest.raises(InputError):
        Explorer(tiny, atlas_store)
