"""The explorer's web server: loopback only, read only, one page a view, and every view an address.

Starlette answers, uvicorn listens. A view runs as a job of one worker thread; a request waits for it a moment, and then
gets a page that says what it waits for. Nothing is ever written by a request.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import warnings
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, quote

import uvicorn
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from .._version import __version__
from ..core.errors import (
    BusyError,
    FfnmemError,
    FfnmemWarning,
    InputError,
    OutOfRangeError,
    bounded,
    check_choice,
    quoted,
)
from ..core.progress import Progress
from ..pages.rendering import TABLES, content_hash, script_of
from ..show.notebook import HERE
from .jobs import Abandoned, Job, Jobs
from .queries import Query
from .rendering import asset, render, styles
from .site import HOME, PAGES
from .views import Explorer, Page, View

LONGEST = 8192  # bytes of an address
PROMPTLY = 1.0  # seconds that a request waits for its view before it gets a page that waits
FILE = 30.0  # for a file, before it is told to ask again
AGAIN = 5  # seconds after which whoever is put off may ask again
FORMATS = ("csv", "png", "html", "json", "safetensors")
HOSTS = ("127.0.0.1", "localhost", "[::1]")
OWN = ("same-origin", "none")

log = logging.getLogger("ffnmem.explorer")

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}


class Guard:
    """Who is answered at all: this machine, by its own name, from the explorer's own pages, within bounds."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self.app = app
        self.hosts = {f"{host}:{port}" for host in HOSTS} | (set(HOSTS) if port == 80 else set())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = self.refusal(Request(scope))
        if refusal is not None:
            await refusal(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def refusal(self, request: Request) -> Response | None:
        """What is said to whoever is not answered."""
        headers = request.headers
        path, query = request.scope["path"], request.scope["query_string"].decode("latin-1")
        if headers.getlist("host") != [headers.get("host", "")] or headers.get("host", "").lower() not in self.hosts:
            return problem("The explorer answers to this machine alone, under localhost and 127.0.0.1.", 421)
        if request.method not in ("GET", "HEAD"):
            return problem("The explorer only reads: it takes GET requests.", 405)
        if len(path) + len(query) > LONGEST:
            return problem(f"The address is too long: at most {LONGEST:,} characters are read.", 414)
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            return problem("The explorer takes no content.", 413)
        origin = headers.get("origin")
        if origin is not None and origin.removeprefix("http://").lower() not in self.hosts:
            return problem("Another site's page asked for this, and gets no answer.", 403)
        if headers.get("sec-fetch-site", "none") not in OWN:
            if headers.get("sec-fetch-dest") == "document" and headers.get("sec-fetch-mode") == "navigate":
                return problem(
                    "A page of another site led here. Nothing has been computed yet.",
                    403,
                    again=here(request),
                )
            return problem("Another site's page asked for this, and gets no answer.", 403)
        return None


def page(status: int = 200, *, scripts: Sequence[str] = (), more: str = "", **values: Any) -> Response:
    """A whole page with the headers that hold it to its own styles and scripts."""
    own = [script_of(TABLES, HERE), asset("explorer.js"), *(script for script in scripts if script)]
    sheets = [styles(), *([more] if more else [])]
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(repr(content_hash(script)) for script in own)}",
            f"style-src-elem {' '.join(repr(content_hash(sheet)) for sheet in sheets)}",
            "style-src-attr 'unsafe-inline'",  # the strength of a shade; elements and scripts need a hash
            "img-src 'self' data:",
            "connect-src 'self'",
            "form-action 'self'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
        )
    )
    html = render(
        "base.html",
        styles=[Markup(sheet) for sheet in sheets],
        scripts=[Markup(script) for script in own],
        version=__version__,
        **{
            "pages": PAGES,
            "here": None,
            "title": "ffnmem",
            "form": Markup(""),
            "view": None,
            "error": "",
            "again": "",
            "waiting": None,
            "saved": {},
            "model": None,
            "store": None,
            **values,
        },
    )
    return HTMLResponse(html, status, {**HEADERS, "Content-Security-Policy": policy})


def problem(said: str, status: int, **values: Any) -> Response:
    """A page that says what is wrong in one line."""
    here = values.get("here")
    title = HTTPStatus(status).phrase if here is None else here.name
    response = page(status, title=title, error=said, **values)
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        response.headers["Retry-After"] = str(AGAIN)
    return response


class Site:
    """The explorer's pages over HTTP.

    Args:
        explorer: what they look at. jobs: who does the work.
    """

    def __init__(self, explorer: Explorer, jobs: Jobs) -> None:
        self.explorer, self.jobs = explorer, jobs
        self.common: dict[str, Any] = {"model": explorer.model, "store": explorer.store}

    def routes(self) -> list[Route]:
        return [
            Route("/waiting/{job}", self.waiting),
            Route("/alive", self.alive),
            Route("/memory/{neuron}", partial(self.answer, page_=by_path("/memory"))),
            Route("/", partial(self.answer, page_=HOME)),
            *(Route(one.path, partial(self.answer, page_=one)) for one in PAGES),
        ]

    async def alive(self, _request: Request) -> Response:
        return Response(status_code=204, headers=HEADERS)

    async def waiting(self, request: Request) -> Response:
        """How far a piece of work is, for the script of a page that waits."""
        job = self.jobs.find(request.path_params["job"])
        if job is None or job.future.done():
            return JSONResponse({"done": True}, headers=HEADERS)
        return JSONResponse({"done": False, **self.state(job)}, headers=HEADERS)

    def state(self, job: Job) -> dict[str, Any]:
        return {"before": self.jobs.before(job), "phase": job.phase, "part": job.done, "total": job.total}

    async def answer(self, request: Request, page_: Page) -> Response:
        """A view's page, or the page that waits for it; its file, or that it is to be asked for again."""
        query = Query([])
        try:
            query, form, path = read(request)
            better = None if form else page_.moved(query)
            if better is not None and better.partition("#")[0] != here(request):
                return RedirectResponse(better, 303, HEADERS)
            return await self.found(page_, query, form, path)
        except FfnmemError as error:
            status = (
                422 if isinstance(error, InputError | OutOfRangeError) else 503 if isinstance(error, BusyError) else 500
            )
            return problem(str(error), status, here=page_, form=self.form(page_, query), **self.common)
        except Abandoned:
            said = "Nobody waited for this any more, so it was given up: load the page again."
            return problem(said, 503, here=page_, form=self.form(page_, query), **self.common)
        except Exception:  # whatever it is, the reader gets a page, and the terminal the traceback
            log.exception("%s failed", page_.path)
            said = "Something went wrong that should not; the terminal that runs the explorer says what."
            return problem(said, 500, here=page_, form=self.form(page_, query), **self.common)

    async def found(self, page_: Page, query: Query, form: str, path: str) -> Response:
        """The view from the cache, or what its job gives."""
        view: Any = None if form else self.explorer.results.get((page_.path, query.key))
        if view is None:
            job = self.jobs.submit((page_.path, query.key, form), partial(self.work, page_, query, form))
            outcome = asyncio.wrap_future(job.future)
            outcome.add_done_callback(asyncio.Future.exception)  # looked at, else asyncio complains of a failure
            await asyncio.wait([outcome], timeout=FILE if form else PROMPTLY)
            if not job.future.done():
                if form:  # a page that waits would be saved as the file
                    raise BusyError(f"the {form} of this page is still being made: ask for it again in a few seconds")
                return self.wait(page_, query, job)
            self.jobs.forget(job)
            view = job.future.result()
        if isinstance(view, FfnmemError):
            raise view
        if form:
            return attached(view)
        saved = {name: query.address(path, format=name) for name in FORMATS if name in view.downloads}
        return page(
            here=page_,
            title=view.title,
            form=self.form(page_, query),
            view=view,
            saved=saved,
            scripts=[view.scripts],
            more=view.styles,
            **self.common,
        )

    def work(self, page_: Page, query: Query, form: str, progress: Progress) -> Any:
        """What a job does: the view, which is kept, or with a format its file. A mistake is kept as well, so that a
        page that waited for it says so when it loads itself again."""
        key = (page_.path, query.key)
        view = self.explorer.results.get(key)
        if view is None:
            view = noted(partial(page_.view, self.explorer, query, progress))
            self.explorer.results.put(key, view)
        if not form or isinstance(view, FfnmemError):
            return view
        if form not in view.downloads:
            raise InputError(f"there is no {form} of this page: it has {', '.join(view.downloads) or 'none'}")
        return view.downloads[form]()

    def wait(self, page_: Page, query: Query, job: Job) -> Response:
        """The page that waits: its script asks how far the work is, and without scripts it loads itself again."""
        return page(
            202,
            here=page_,
            title=page_.name,
            form=self.form(page_, query),
            waiting={"id": job.id, "what": page_.waits, **self.state(job)},
            **self.common,
        )

    def form(self, page_: Page, query: Query) -> Markup:
        return page_.form(self.explorer, query)


def noted(work: Callable[[], View]) -> View | FfnmemError:
    """A view with what was warned of on the way, or the user's mistake."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FfnmemWarning)
        try:
            view = work()
        except (InputError, OutOfRangeError) as error:
            return error.with_traceback(None)
    said = [bounded(str(one.message)) for one in caught if issubclass(one.category, FfnmemWarning)]
    return replace(view, notes=tuple(dict.fromkeys((*view.notes, *said))))


def read(request: Request) -> tuple[Query, str, str]:
    """The query, the format that is asked for or nothing, and the path of an address; raises InputError."""
    try:
        pairs = parse_qsl(
            request.scope["query_string"].decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=100
        )
    except ValueError:
        raise InputError("the address holds what is no text, or too many parameters") from None
    named = [(name, str(value)) for name, value in request.path_params.items()]
    form = [value for name, value in pairs if name == "format" and value]
    query = Query([*named, *((name, value) for name, value in pairs if name != "format" and name not in dict(named))])
    return query, check_choice("format", form[-1], FORMATS) if form else "", quote(request.scope["path"])


def here(request: Request) -> str:
    """The address as it was asked for."""
    typed = request.scope["query_string"].decode("latin-1")
    path = "/" + quote(request.scope["path"]).lstrip("/")  # two slashes would lead to another site
    return path + (f"?{typed}" if typed else "")


def by_path(path: str) -> Page:
    return next(one for one in PAGES if one.path == path)


def attached(given: Any) -> Response:
    """A file to save."""
    disposition = f"attachment; filename*=UTF-8''{quote(given.name, safe='')}"
    policy = {"Content-Security-Policy": "sandbox; default-src 'none'"}
    return Response(
        given.content, media_type=given.media, headers={**HEADERS, **policy, "Content-Disposition": disposition}
    )


async def no_page(_request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return problem("There is no such page here." if status == 404 else HTTPStatus(status).phrase, status)


async def failed(_request: Request, _error: Exception) -> Response:
    return problem("Something went wrong that should not; the terminal that runs the explorer says what.", 500)


def app(explorer: Explorer, port: int, jobs: Jobs | None = None) -> Starlette:
    """The explorer as an ASGI application that answers to loopback names with this port."""
    site = Site(explorer, jobs or Jobs())
    handlers: dict[Any, Callable[[Request, Exception], Awaitable[Response]]] = {
        HTTPException: no_page,
        Exception: failed,
    }
    return Starlette(routes=site.routes(), middleware=[Middleware(Guard, port=port)], exception_handlers=handlers)


def check_loopback(host: str) -> str:
    """``host`` if it is one that is answered to; raises InputError: whoever reaches the page can use the model."""
    if host not in {name.strip("[]") for name in HOSTS}:
        raise InputError(
            f"host {quoted(host)} is not this machine's own: the explorer listens on 127.0.0.1; from elsewhere, come "
            "through a tunnel (ssh -L 8765:127.0.0.1:8765)"
        )
    return host


def listening_at(host: str, port: int) -> socket.socket:
    """A socket on this machine; raises InputError: another host, or a port that is taken."""
    family = socket.AF_INET6 if ":" in check_loopback(host) else socket.AF_INET
    found = socket.socket(family)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except OSError as error:
        found.close()
        raise InputError(f"port {port} cannot be used ({error.strerror}): choose another with --port") from None
    return found


class Listening(uvicorn.Server):
    """uvicorn, which says when it answers."""

    def __init__(self, explorer: Explorer, port: int, jobs: Jobs, ready: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app(explorer, port, jobs),
                log_level="warning",
                access_log=False,
                limit_concurrency=64,
                h11_max_incomplete_event_size=16384,
                http="h11",
                ws="none",
                lifespan="off",
                timeout_keep_alive=5,
                timeout_graceful_shutdown=2,
                server_header=False,
            )
        )
        self.ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.ready()


def serve(explorer: Explorer, *, host: str = "127.0.0.1", port: int = 8765, ready: Callable[[str], None]) -> None:
    """Listen until interrupted.

    Args:
        explorer: what is shown. host: a loopback address. port: 0 takes a free one.
        ready: called with the page's address once it is answered.

    Raises: InputError: another host, or a port that is taken.
    """
    with listening_at(host, port) as listening:
        taken = listening.getsockname()[1]
        name = f"[{host}]" if ":" in host else host
        jobs = Jobs()
        try:
            Listening(explorer, taken, jobs, lambda: ready(f"http://{name}:{taken}/")).run(sockets=[listening])
        finally:
            jobs.close()
