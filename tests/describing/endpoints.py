"""A small server of chat completions on loopback, that does what a test tells it to."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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


def whole_request(connection: socket.socket) -> bytes:
    """Head and body: to hang up with some of it unread would reset the connection before the answer is read."""
    data = b""
    while more := connection.recv(1 << 16):
        data += more
        head, blank, body = data.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        if blank and len(body) >= (int(length[1]) if length else 0):
            break
    return data


@contextmanager
def sending(first: bytes, then: bytes = b"", every: float = 0.01) -> Iterator[tuple[str, list[bytes]]]:
    """A server that sends bytes, then others for as long as somebody listens; its base, and what it was sent."""
    listener, asked = socket.create_server(("127.0.0.1", 0)), []

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            asked.append(whole_request(connection))
            connection.sendall(first)
            while then:
                connection.sendall(then)
                time.sleep(every)

    def serve() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1", asked
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
