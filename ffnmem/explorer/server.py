"""The explorer's web server: loopback only, read only, one page a view, and every view an address.

Starlette answers, uvicorn listens. A view runs as a job of one worker thread; a request waits for it a moment, and then
gets a page that says what it waits for. Nothing is ever written by a request.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, quote

import uvicorn
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from .._version import __version__
from ..core.errors import FfnmemError, FfnmemWarning, InputError, OutOfRangeError, bounded, check_choice
from ..core.progress import Progress
from ..pages.rendering import TABLES, content_hash, script_of
from ..show.notebook import HERE
from .circuit_view import circuit_page
from .contrast_view import contrast_page
from .fact_view import fact_page
from .find_view import find_page
from .home import home_page
from .jobs import Job, Jobs, UnavailableError
from .memory_view import memory_page
from .prompt_view import prompt_page
from .queries import Query
from .rendering import FORMATS, Download, asset, download, fragment, render, saved_page, styles
from .views import Explorer, Page, View

PAGES = (prompt_page, contrast_page, memory_page, find_page, circuit_page, fact_page)
"""In the order of the navigation."""
LONGEST = 8192  # bytes of an address
PROMPTLY = 1.0  # seconds that a request waits for its view before it gets a page that waits
FILE = 30.0  # for a file, before it is told to ask again
AGAIN = 5  # seconds after which whoever is put off may ask again
BROKEN = "Something went wrong that should not; the terminal that runs the explorer says what."

log = logging.getLogger("ffnmem.explorer")

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}

Typed = Mapping[str, Sequence[str]]
"""The parameters of an address as typed, without those that are empty."""


def html_page(status: int = 200, **values: Any) -> Response:
    """A whole page with the headers that hold it to its own styles and scripts."""
    own, sheet = [script_of(TABLES, HERE), asset("explorer.js")], styles()
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(repr(content_hash(script)) for script in own)}",
            f"style-src-elem {content_hash(sheet)!r}",
            "style-src-attr 'unsafe-inline'",  # the strength of a shade; elements and scripts need a hash
            "img-src 'self' data:",
            "connect-src 'self'",
            "form-action 'self'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
        )
    )
    nothing: dict[str, Any] = dict.fromkeys(("here", "form", "view", "error", "again", "waiting", "model", "store"))
    html = render(
        "base.html",
        styles=[Markup(sheet)],
        scripts=[Markup(script) for script in own],
        version=__version__,
        pages=PAGES,
        **(nothing | {"saved": {}} | values),
    )
    return HTMLResponse(html, status, {**HEADERS, "Content-Security-Policy": policy})


def problem(message: str, status: int, **values: Any) -> Response:
    """A page that says what is wrong in one line."""
    response = html_page(status, error=message, **({"title": HTTPStatus(status).phrase} | values))
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

    def routes(self) -> list[Route]:
        return [
            Route("/waiting/{job}", self.waiting),
            Route("/alive", self.alive),
            Route("/memory/{neuron}", partial(self.answer, memory_page)),
            *(Route(page.path, partial(self.answer, page)) for page in (home_page, *PAGES)),
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

    async def answer(self, page: Page, request: Request) -> Response:
        """A view's page, or the page that waits for it; its file, or that it is to be asked for again."""
        typed: Typed = {}
        if len(request.url.path) + len(request.url.query) > LONGEST:
            return problem(f"The address is too long: at most {LONGEST:,} characters are read.", 414)
        if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return refuse_stranger(request)
        try:
            typed, form = read_address(request)
            query = page.query.read(typed)
            if not form and (better := query.moved()):
                return RedirectResponse(better, 303, HEADERS)
            return await self.made(page, query, typed, form, quote(request.url.path))
        except FfnmemError as error:
            wrong = isinstance(error, InputError | OutOfRangeError)
            message, status = str(error), 422 if wrong else 500
        except UnavailableError as error:
            message, status = str(error), 503
        except Exception:  # whatever it is, the reader gets a page, and the terminal the traceback
            log.exception("%s failed", page.path)
            message, status = BROKEN, 500
        return problem(message, status, title=page.name, **self.frame(page, typed))

    async def made(self, page: Page, query: Query, typed: Typed, form: str, path: str) -> Response:
        """The view from the cache, or what its job gives."""
        result: Any = None if form else self.explorer.results.get((page.path, query))
        if result is None:
            job = self.jobs.submit((page.path, query, form), partial(self.work, page, query, form))
            outcome = asyncio.wrap_future(job.future)
            outcome.add_done_callback(asyncio.Future.exception)  # looked at, else asyncio complains of a failure
            await asyncio.wait([outcome], timeout=FILE if form else PROMPTLY)
            if not job.future.done():
                if form:  # a page that waits would be saved as the file
                    raise UnavailableError(
                        f"the {form} of this page is still being made: ask for it again in a few seconds"
                    )
                waiting = {"id": job.id, "what": page.waits, **self.state(job)}
                return html_page(202, title=page.name, waiting=waiting, **self.frame(page, typed))
            self.jobs.forget(job)
            result = job.future.result()
        if isinstance(result, FfnmemError):
            raise result
        if isinstance(result, Download):
            return attached(result)
        saved = {name: query.address(("format", name)) for name in FORMATS if name in files_of(result)}
        return html_page(
            title=result.title,
            view=result,
            saved=saved,
            **self.frame(page, typed),
        )

    def work(self, page: Page, query: Query, form: str, progress: Progress) -> Any:
        """What a job does: the view, which is kept, or with a format its file. A mistake is kept as well, so that a
        page that waited for it says so when it loads itself again."""
        key = page.path, query
        result = self.explorer.results.get(key)
        if result is None:
            result = with_warnings(partial(page.make, self.explorer, query, progress))
            self.explorer.results.put(key, result)
        if not form or isinstance(result, FfnmemError):
            return result
        files = files_of(result)
        if form not in files:
            raise InputError(f"there is no {form} of this page: it has {', '.join(files) or 'none'}")
        return download(form, result.name, files[form])

    def frame(self, page: Page, typed: Typed) -> dict[str, Any]:
        """What stands around a view: its form, filled in as typed, and what is loaded."""
        explorer = self.explorer
        form = fragment("form.html", page=page, typed=typed, fields=page.query.model_fields,
                        choices=page.choices(explorer), links=page.links(explorer, typed))  # fmt: skip
        return {"here": page, "form": form, "model": explorer.model, "store": explorer.store}


def with_warnings(make: Callable[[], View]) -> View | FfnmemError:
    """A view with what was warned of on the way, or the user's mistake."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FfnmemWarning)
        try:
            view = make()
        except (InputError, OutOfRangeError) as error:
            return error.with_traceback(None)
    messages = [bounded(str(one.message)) for one in caught if issubclass(one.category, FfnmemWarning)]
    return replace(view, notes=tuple(dict.fromkeys((*view.notes, *messages))))


def files_of(view: View) -> dict[str, Callable[[], Any]]:
    """What can be saved of a view, by format; every view with numbers as the page that it shows."""
    page = partial(saved_page, view.title, view.body, view.provenance)
    return ({"html": page} if view.provenance else {}) | dict(view.files)


def read_address(request: Request) -> tuple[Typed, str]:
    """The parameters of an address, and the format that is asked for or nothing; raises InputError."""
    try:
        typed = parse_qs(request.scope["query_string"].decode("ascii"), errors="strict", max_num_fields=100)
    except ValueError:
        raise InputError("the address holds what is no text, or too many parameters") from None
    typed = {name: kept for name, values in typed.items() if (kept := [value for value in values if value.strip()])}
    form = check_choice("format", typed.pop("format")[-1], FORMATS) if "format" in typed else ""
    return typed | {name: [str(value)] for name, value in request.path_params.items()}, form


def refuse_stranger(request: Request) -> Response:
    """What another site's page gets: nothing is computed for it; a link there is opened only by a click here."""
    headers = request.headers
    if (headers.get("sec-fetch-dest"), headers.get("sec-fetch-mode")) != ("document", "navigate"):
        return problem("Another site's page asked for this, and gets no answer.", 403)
    path = "/" + quote(request.url.path).lstrip("/")  # two slashes would lead to another site
    here = path + (f"?{request.url.query}" if request.url.query else "")
    return problem("A page of another site led here. Nothing has been computed yet.", 403, again=here)


def attached(file: Download) -> Response:
    """A file to save."""
    disposition = f"attachment; filename*=UTF-8''{quote(file.name, safe='')}"
    policy = {"Content-Security-Policy": "sandbox; default-src 'none'"}
    headers = {**HEADERS, **policy, "Content-Disposition": disposition}
    return Response(file.content, media_type=file.media, headers=headers)


async def no_page(_request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return problem("There is no such page here." if status == 404 else HTTPStatus(status).phrase, status)


def app(explorer: Explorer, jobs: Jobs) -> Starlette:
    """The explorer as an ASGI application that answers to this machine's own names."""
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
    return Starlette(
        routes=Site(explorer, jobs).routes(), middleware=[hosts], exception_handlers={HTTPException: no_page}
    )


def listening_at(port: int) -> socket.socket:
    """A socket on this machine alone: whoever reaches the page can use the model. Raises InputError: a taken port."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(("127.0.0.1", port))
        bound.listen()
    except OSError as error:
        bound.close()
        raise InputError(f"port {port} cannot be used ({error.strerror}): choose another with --port") from None
    return bound


def server(explorer: Explorer, jobs: Jobs) -> uvicorn.Server:
    """uvicorn with the explorer."""
    return uvicorn.Server(
        uvicorn.Config(
            app(explorer, jobs),
            log_level="warning",
            access_log=False,
            h11_max_incomplete_event_size=16384,
            http="h11",
            ws="none",
            lifespan="off",
            timeout_keep_alive=5,
            timeout_graceful_shutdown=2,
            server_header=False,
        )
    )


def serve(explorer: Explorer, *, port: int = 8765, ready: Callable[[str], None]) -> None:
    """Listen until interrupted.

    Args:
        explorer: what is shown. port: 0 takes a free one.
        ready: called with the page's address, which is answered from then on.

    Raises: InputError: a port that is taken.
    """
    jobs = Jobs()
    with listening_at(port) as listening:
        ready(f"http://127.0.0.1:{listening.getsockname()[1]}/")
        try:
            server(explorer, jobs).run(sockets=[listening])
        finally:
            jobs.close()
