"""The explorer's web server: loopback only, read only, one page a view, and every result an address.

Starlette answers, uvicorn listens. An operation runs as a job of one worker thread; a request waits for it a moment,
and then gets a page that says what it waits for. Nothing is ever written by a request.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import socket
import tempfile
from collections.abc import Callable
from functools import cache, partial
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote

import uvicorn
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from .._version import __version__
from ..core.errors import FfnmemError, InputError, OutOfRangeError, check_choice
from ..core.pictures import picture
from ..core.progress import PHASES, Progress
from ..pages.rendering import PACKAGE as PAGES
from ..pages.rendering import TABLES, content_hash, script_of
from ..pages.results import result_html
from ..show import notebook
from ..show.records import csv_text
from .jobs import Job, Jobs, UnavailableError
from .views import JOINED, Explorer, Question, Shown, Typed, View, choices_of, several

PACKAGE = "ffnmem.explorer"
LONGEST = 8192  # bytes of an address
PROMPTLY = 1.0  # seconds that a request waits for its result before it gets a page that waits
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
render = partial(notebook.render, package=(PACKAGE, PAGES))


@cache
def asset(name: str) -> str:
    """A script or style of the explorer."""
    return files(PACKAGE).joinpath("templates", name).read_text("utf-8")


@cache
def styles() -> str:
    """What every page is styled by: what pages of results are, then its own."""
    return render("page_styles.css") + asset("explorer.css")


def html_page(template: str = "base.html", status: int = 200, **values: Any) -> Response:
    """A whole page with the headers that hold it to its own styles and scripts."""
    own, sheet = [script_of(TABLES, notebook.HERE), asset("explorer.js")], styles()
    policy = (
        f"default-src 'none'; script-src {' '.join(repr(content_hash(script)) for script in own)}; "
        f"style-src-elem {content_hash(sheet)!r}; style-src-attr 'unsafe-inline'; "  # the strength of a shade
        "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
    nothing: dict[str, Any] = dict.fromkeys(("explorer", "here", "shown", "error", "again", "waiting"))
    known = {"style": Markup(sheet), "scripts": [Markup(script) for script in own], "version": __version__}
    html = render(template, **(nothing | known | values))
    return HTMLResponse(html, status, {**HEADERS, "Content-Security-Policy": policy})


def problem(message: str, status: int, **values: Any) -> Response:
    """A page that says what is wrong in one line."""
    response = html_page(status=status, error=message, **({"title": HTTPStatus(status).phrase} | values))
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
        views = [Route(f"/{name}", partial(self.answer, view)) for name, view in self.explorer.views.items()]
        return [Route("/", self.home), Route("/waiting/{job}", self.waiting), Route("/alive", self.alive), *views]

    async def alive(self, _request: Request) -> Response:
        return Response(status_code=204, headers=HEADERS)

    async def waiting(self, request: Request) -> Response:
        """How far a piece of work is, for the script of a page that waits."""
        job = self.jobs.find(request.path_params["job"])
        if job is None or job.future.done():
            return JSONResponse({"done": True}, headers=HEADERS)
        return JSONResponse({"done": False, **self.state(job)}, headers=HEADERS)

    def state(self, job: Job) -> dict[str, Any]:
        """How far a piece of work is, in words and as a part of all of it."""
        before = self.jobs.before(job)
        if before:
            return {"part": 0, "total": 0, "words": f"{before} other page{'s' * (before > 1)} first"}
        words, unit = PHASES[job.phase] if job.phase else ("working", "")
        if job.done and unit.startswith("percent "):
            words += f": {job.done}% {unit.removeprefix('percent ')}"
        elif job.done:
            words += f": {job.done:,} of {job.total:,} {unit}"
        return {"part": job.done, "total": job.total if job.done else 0, "words": words}

    async def home(self, request: Request) -> Response:
        """What is loaded, and where to begin."""
        if is_strange(request):
            return refuse_stranger(request)
        title = "The memories of " + self.explorer.model.name
        return html_page("home.html", title=title, explorer=self.explorer)

    async def answer(self, view: View, request: Request) -> Response:
        """A view's page, or the page that waits for it; its file, or that it is to be asked for again."""
        typed: Typed = {}
        if len(request.url.path) + len(request.url.query) > LONGEST:
            return problem(f"The address is too long: at most {LONGEST:,} characters are read.", 414)
        if is_strange(request):
            return refuse_stranger(request)
        try:
            typed, form = read_address(request)
            if not typed:
                return html_page(**self.frame(view, view.example))
            question = self.explorer.read(view, typed)
            return await self.made(question, typed, form)
        except FfnmemError as error:
            wrong = isinstance(error, InputError | OutOfRangeError)
            message, status = str(error), 422 if wrong else 500
        except UnavailableError as error:
            message, status = str(error), 503
        except Exception:  # whatever it is, the reader gets a page, and the terminal the traceback
            log.exception("%s failed", view.name)
            message, status = BROKEN, 500
        return problem(message, status, **self.frame(view, typed))

    async def made(self, question: Question, typed: Typed, form: str) -> Response:
        """The result from the cache, or what its job gives."""
        result: Any = None if form else self.explorer.results.kept.get(question.key)
        if result is None:
            job = self.jobs.submit((question.key, form), partial(self.work, question, form))
            outcome = asyncio.wrap_future(job.future)
            outcome.add_done_callback(asyncio.Future.exception)  # looked at, else asyncio complains of a failure
            await asyncio.wait([outcome], timeout=FILE if form else PROMPTLY)
            if not job.future.done():
                if form:  # a page that waits would be saved as the file
                    raise UnavailableError(
                        f"the {form} of this page is still being made: ask for it again in a few seconds"
                    )
                return html_page(
                    status=202, waiting={"id": job.id, **self.state(job)}, **self.frame(question.view, typed)
                )
            self.jobs.forget(job)
            result = job.future.result()
        if isinstance(result, FfnmemError):
            raise result
        if form:
            return attached(f"{question.view.name}.{form}", FORMATS[form][0], result)
        return html_page(shown=result, saved=saved_as(result), **self.frame(question.view, typed))

    def work(self, question: Question, form: str, progress: Progress) -> Any:
        """What a job does: the result, which is kept, or with a format its file. A mistake is kept as well, so that a
        page that waited for it says so when it loads itself again."""
        shown = self.explorer.results.kept.get(question.key)
        if shown is None:
            shown = self.explorer.results.put(question.key, self.explorer.show(question, progress))
        if not form or isinstance(shown, FfnmemError):
            return shown
        if form not in saved_as(shown):
            raise InputError(f"there is no {form} of this page: it has {', '.join(saved_as(shown))}")
        return FORMATS[form][1](shown, question)

    def frame(self, view: View, typed: Typed) -> dict[str, Any]:
        """What stands around a result: its form, filled in as typed, and where else to go."""
        explorer = self.explorer
        return {
            "title": re.sub(r"(?<!\.)\.$", "", view.operation.short),
            "explorer": explorer,
            "here": view,
            "typed": typed,
            "choices": choices_of,
            "several": several,
            "joined": JOINED,
            "links": explorer.links(view, typed),
            "others": list(explorer.others(view, typed)),
            "beside": explorer.beside(view, typed),
            "address": view.address,
        }


def saved_as(shown: Shown) -> list[str]:
    """The formats in which a result can be saved."""
    return [name for name in FORMATS if (name != "png" or shown.drawn) and (name != "zip" or not shown.result.no_file)]


def figure_png(shown: Shown, question: Question) -> bytes:
    """A result's figure."""
    import matplotlib

    matplotlib.use("agg")  # a window could not be drawn from the worker's thread
    import matplotlib.pyplot as plt

    figure, buffer = picture("figure")(shown.result), io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, bbox_inches="tight")
    plt.close(figure)
    return buffer.getvalue()


def saved_result(shown: Shown, _question: Question) -> bytes:
    """A result as the file that its ``save`` writes."""
    with tempfile.TemporaryDirectory() as folder:
        return Path(shown.result.save(Path(folder) / "result.zip")).read_bytes()


FORMATS: dict[str, tuple[str, Callable[[Shown, Question], bytes]]] = {
    "csv": ("text/csv; charset=utf-8", lambda one, _: csv_text(one.result.to_frame(None, derived=False)).encode()),
    "png": ("image/png", figure_png),
    "html": ("text/html; charset=utf-8", lambda one, asked: result_html(one.result, asked.top, asked.full).encode()),
    "json": ("application/json", lambda one, _: json.dumps(one.result.to_dict(), ensure_ascii=False).encode()),
    "zip": ("application/zip", saved_result),
}
"""By the name in the address: a file's media type, and how it is made, on the worker. Cells are data as they are."""


def read_address(request: Request) -> tuple[Typed, str]:
    """The parameters of an address, and the format that is asked for or nothing; raises InputError."""
    try:
        typed = parse_qs(request.scope["query_string"].decode("ascii"), errors="strict", max_num_fields=100)
    except ValueError:
        raise InputError("the address holds what is no text, or too many parameters") from None
    typed = {name: kept for name, values in typed.items() if (kept := [value for value in values if value.strip()])}
    form = check_choice("format", typed.pop("format")[-1], FORMATS) if "format" in typed else ""
    return typed, form


def is_strange(request: Request) -> bool:
    """Whether another site's page asks, or leads here."""
    return request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none")


def refuse_stranger(request: Request) -> Response:
    """What another site's page gets: nothing is computed for it; a link there is opened only by a click here."""
    headers = request.headers
    if (headers.get("sec-fetch-dest"), headers.get("sec-fetch-mode")) != ("document", "navigate"):
        return problem("Another site's page asked for this, and gets no answer.", 403)
    path = "/" + quote(request.url.path).lstrip("/")  # two slashes would lead to another site
    here = path + (f"?{request.url.query}" if request.url.query else "")
    return problem("A page of another site led here. Nothing has been computed yet.", 403, again=here)


def attached(name: str, media: str, content: bytes) -> Response:
    """A file to save."""
    disposition = f"attachment; filename*=UTF-8''{quote(name, safe='')}"
    policy = {"Content-Security-Policy": "sandbox; default-src 'none'"}
    return Response(content, media_type=media, headers={**HEADERS, **policy, "Content-Disposition": disposition})


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
    config = uvicorn.Config(app(explorer, jobs), log_level="warning", access_log=False, http="h11", ws="none",
                            lifespan="off", h11_max_incomplete_event_size=16384, timeout_keep_alive=5,
                            timeout_graceful_shutdown=2, server_header=False)  # fmt: skip
    return uvicorn.Server(config)


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
