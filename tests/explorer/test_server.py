"""Who is answered, and with what headers; what waits; what fails."""

from __future__ import annotations

import re
import threading

import pytest
from markupsafe import Markup
from starlette.testclient import TestClient

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.explorer import server, site
from ffnmem.explorer.queries import Query
from ffnmem.explorer.server import check_loopback, listening_at
from ffnmem.explorer.views import Download, Explorer, Page, View
from ffnmem.pages.rendering import content_hash

from .conftest import BASE, PORT, asking


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": f"evil.example:{PORT}"}, 421),
        ({"host": "127.0.0.1:9999"}, 421),
        ({"host": f"localhost:{PORT}"}, 200),
        ({"host": f"[::1]:{PORT}"}, 200),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"}, 403),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": BASE}, 200),
        ({"content-length": "5"}, 413),
        ({"transfer-encoding": "chunked"}, 413),
    ],
)
def test_only_this_machine_and_its_own_pages_are_answered(
    client: TestClient, headers: dict[str, str], status: int
) -> None:
    found = client.get("/", headers=headers)
    assert found.status_code == status
    assert found.headers["x-content-type-options"] == "nosniff"
    assert ("The memories of" in found.text) == (status == 200)


def test_a_link_from_another_site_is_opened_only_after_a_click(client: TestClient) -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    found = client.get("/prompt?text=%3Cb%3E&v=0.1:0", headers=headers)
    assert found.status_code == 403
    assert 'href="/prompt?text=%3Cb%3E&amp;v=0.1:0"' in found.text
    assert 'href="/evil.example/"' in client.get(f"{BASE}//evil.example/", headers=headers).text


def test_nothing_is_written_and_addresses_have_a_bound(client: TestClient) -> None:
    assert client.post("/prompt", data={"text": "x"}).status_code == 405
    assert client.get("/prompt?text=" + "x" * 9000).status_code == 414
    assert client.get("/prompt?" + "a=1&" * 200).status_code == 422
    assert client.get("/prompt?text=%ff").status_code == 422
    assert client.get("/nowhere").status_code == 404
    assert client.get("/../etc/passwd").status_code == 404


def test_only_the_explorers_own_scripts_and_styles_run(client: TestClient) -> None:
    found = client.get("/prompt?text=The")
    policy = found.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    assert "'unsafe-inline'" not in policy.replace("style-src-attr 'unsafe-inline'", "")
    for kind in ("script", "style"):
        pieces = re.findall(rf"<{kind}>(.*?)</{kind}>", found.text, re.DOTALL)
        assert pieces
        assert all(content_hash(piece) in policy for piece in pieces)
    assert not re.search(r"<[^>]*\son[a-z]+=", found.text)
    assert "http://" not in found.text.replace(BASE, "")
    assert "https://" not in found.text
    for name, value in (("referrer-policy", "no-referrer"), ("cache-control", "no-store"), ("x-frame-options", "DENY")):
        assert found.headers[name] == value


def test_other_hosts_are_refused() -> None:
    for host in ("0.0.0.0", "192.168.1.5", "example.org", "::", "127.0.0.2", "[::1]"):
        with pytest.raises(InputError, match="is not this machine's own"):
            check_loopback(host)
    assert check_loopback("127.0.0.1") == "127.0.0.1"
    with listening_at("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(InputError, match="choose another with --port"):
            listening_at("127.0.0.1", taken.getsockname()[1])


class Held:
    """A view that waits until it is let go, put in the place of the prompt's."""

    def __init__(self) -> None:
        self.go, self.begun, self.calls = threading.Event(), threading.Event(), 0

    def view(self, _explorer: Explorer, query: Query, progress: server.Progress) -> View:
        self.calls += 1
        progress("read", 1, 4)
        self.begun.set()
        self.go.wait(20)
        if "wrong" in query:
            raise InputError("wrong is wrong")
        if "broken" in query:
            raise RuntimeError("secret details")
        return View(
            "Done", Markup("<p>the result</p>"), downloads={"csv": lambda: Download("it.csv", "text/csv", b"a,b\n")}
        )


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    found = Held()
    page = Page("Prompt", "/prompt", found.view, lambda _explorer, query: Markup("{}").format(query.raw("text")), "it")
    for module in (site, server):
        monkeypatch.setattr(module, "PAGES", (page, *site.PAGES[1:]))
    monkeypatch.setattr(server, "PROMPTLY", 0.01)
    return found


def test_a_slow_view_says_what_it_waits_for_and_is_kept(tiny: fm.Model, held: Held) -> None:
    with asking(Explorer(tiny)) as client:
        found = client.get("/prompt?text=kept")
        assert found.status_code == 202
        assert "Waiting for it" in found.text
        assert '<noscript><meta http-equiv="refresh" content="2"></noscript>' in found.text
        job = re.search(r'data-waiting="([^"]+)"', found.text)
        assert job
        held.begun.wait(10)
        how = client.get(f"/waiting/{job[1]}").json()
        assert (how["done"], how["part"], how["total"]) == (False, 1, 4)
        held.go.set()
        while not client.get(f"/waiting/{job[1]}").json()["done"]:
            pass
        for _ in range(2):
            found = client.get("/prompt?text=kept")
            assert (found.status_code, "the result" in found.text) == (200, True)
        assert held.calls == 1


def test_a_mistake_found_late_is_said_with_the_form_filled_in(tiny: fm.Model, held: Held) -> None:
    held.go.set()
    with asking(Explorer(tiny)) as client:
        client.get("/prompt?text=typed%3Ci%3E&wrong=1")
        for _ in range(200):
            found = client.get("/prompt?text=typed%3Ci%3E&wrong=1")
            if found.status_code != 202:
                break
        assert found.status_code == 422
        assert "wrong is wrong" in found.text
        assert "typed&lt;i&gt;" in found.text
        assert held.calls == 1


def test_a_failure_shows_no_details(tiny: fm.Model, held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PROMPTLY", 20.0)
    held.go.set()
    with asking(Explorer(tiny)) as client:
        found = client.get("/prompt?broken=1")
        assert found.status_code == 500
        assert "the terminal that runs the explorer says what" in found.text
        assert "secret details" not in found.text
        assert "Traceback" not in found.text


def test_a_failure_found_late_is_said_once(tiny: fm.Model, held: Held) -> None:
    """A page that waits loads itself again: it would do so for ever, were the work begun anew each time."""
    with asking(Explorer(tiny)) as client:
        found = client.get("/prompt?broken=1")
        job = re.search(r'data-waiting="([^"]+)"', found.text)
        assert job
        held.go.set()
        while not client.get(f"/waiting/{job[1]}").json()["done"]:
            pass
        assert client.get("/prompt?broken=1").status_code == 500
        assert held.calls == 1


def test_a_file_that_takes_long_is_asked_for_again_and_no_page_is_saved_in_its_place(
    tiny: fm.Model, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "FILE", 0.01)
    with asking(Explorer(tiny)) as client:
        found = client.get("/prompt?text=kept&format=csv")
        assert (found.status_code, found.headers["retry-after"]) == (503, "5")
        assert "the csv of this page is still being made" in found.text
        assert "data-waiting" not in found.text
        assert "content-disposition" not in found.headers
        monkeypatch.setattr(server, "FILE", 20.0)
        held.go.set()
        found = client.get("/prompt?text=kept&format=csv")
        assert (found.status_code, found.text) == (200, "a,b\n")
        assert found.headers["content-disposition"] == "attachment; filename*=UTF-8''it.csv"
        assert client.get("/prompt?text=kept&format=png").status_code == 422
        assert held.calls == 1


def test_a_full_queue_is_a_page_of_its_own(tiny: fm.Model, held: Held) -> None:
    with asking(Explorer(tiny)) as client:
        answers = [client.get(f"/prompt?text={n}").status_code for n in range(9)]
        assert answers == [202] * 9
        found = client.get("/prompt?text=more")
        assert (found.status_code, found.headers["retry-after"]) == (503, "5")
        assert "8 pages wait for the model already" in found.text
        held.go.set()


def test_a_store_of_another_model_is_refused(tiny: fm.Model, atlas_store: fm.scanning.Store) -> None:
    with pytest.raises(InputError):
        Explorer(tiny, atlas_store)
