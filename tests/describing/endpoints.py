"""A small server of chat completions on loopback, that does what a test tells it to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, dict[str, str], bytes]


def said(text: str | None, **choice: Any) -> Reply:
    """A chat completion."""
    body = {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop", **choice}]}
    return 200, {}, json.dumps(body).encode()


class Server:
    """``requests``: what was asked, with path and headers. ``url``: its base."""

    def __init__(self, reply: Callable[[int, dict[str, Any]], Reply]) -> None:
        self.reply, self.lock = reply, threading.Lock()
        self.requests: list[dict[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer.lock:
                    number = len(outer.requests)
                    outer.requests.append({"path": self.path, "headers": dict(self.headers), "body": body})
                status, headers, data = outer.reply(number, body)
                try:
                    self.send_response(status)
                    for name, value in {**headers, "Content-Length": str(len(data))}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:  # whoever asked has gone
                    pass

            def log_message(self, *_of: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/v1"


@contextmanager
def serving(reply: Callable[[int, dict[str, Any]], Reply]) -> Iterator[Server]:
    """A server that answers the n-th request, with its body, as the function says."""
    server = Server(reply)
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.http.shutdown()
        server.http.server_close()
        thread.join()
