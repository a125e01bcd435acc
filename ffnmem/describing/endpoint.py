"""A language model behind an address: the chat completions of OpenAI's protocol, which llama.cpp, vLLM, Ollama and most
services speak too.

One POST of JSON needs no more than Python's own ``urllib``. The client library ``openai`` (3.57: 30 MB, half a second
to import) was measured and left: by default it follows redirects, sends organisation and project names from the
environment to any address, tells it system and Python version, has no deadline for a whole answer and takes one of any
size and shape. All that keeps a key and a caller safe here would have to be written around it.
"""

from __future__ import annotations

import email.utils
import ipaddress
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from http.client import HTTPException
from typing import Annotated, Any
from urllib.parse import urlsplit

from .._version import __version__
from ..core.errors import EndpointError, InputError, counted, quoted
from ..core.types import Count, Range, checked

AGAIN = (408, 425, 429, 500, 502, 503, 504, 529)
"""The statuses that pass: too many questions at once, or a server that is not ready."""
PAUSE, LONGEST_PAUSE = 0.5, 60.0  # seconds before the first try again, doubled each time; and at most
LARGEST = 1 << 20  # bytes of an answer
PATH = "/chat/completions"


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Elsewhere is not what was asked for, and a key would be sent there."""

    def redirect_request(self, *_of: Any) -> None:
        return None


@checked
@dataclass(frozen=True)
class Endpoint:
    """A model that answers chats at an address, to explain neurons and to judge descriptions.

    Nothing is sent anywhere before it is called. A key is read from the environment when it is needed, goes into the
    request's header, and is written nowhere; it is refused to an address that is neither https nor this machine.

    Args:
        url: the base, such as ``"http://127.0.0.1:8080/v1"`` (llama.cpp) or ``"http://127.0.0.1:11434/v1"`` (Ollama).
        model: its name there.
        key_variable: the environment variable that holds a key; None for none.
        timeout: seconds to wait for the server's next bytes, and for the whole answer once its head is there; a server
            that is late is not asked again.
        retries: how often more it is asked where it is busy, not ready or garbled, each time after twice the pause, or
            as long as the server says.
        together: questions at once.
        tokens: of an answer, at most.
        options: further fields of the request; None takes one away, such as ``{"temperature": None}``.

    Raises: InputError: what is no address, or has a password or a query in it; numbers out of range.
    """

    url: str
    model: str
    key_variable: str | None = None
    timeout: Annotated[float, Range(above=0, below=10**6)] = 60.0
    retries: Annotated[int, Range(0, 100)] = 4
    together: Annotated[int, Range(1, 256)] = 4
    tokens: Count = 512
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            _ = parts.port
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname or re.search(r"[\s\x00-\x1f]", self.url):
            raise InputError(
                f"url {quoted(mask_secrets(self.url))} is no address: give one such as http://127.0.0.1:8080/v1"
            )
        if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
            raise InputError(
                f"url {quoted(mask_secrets(self.url))} has a name, a password or a query in it, which would be written "
                "down: give a key by the name of an environment variable (key_variable)"
            )
        if not self.model.strip():
            raise InputError("model is empty: give the name of the model that the address serves")
        try:
            json.dumps(dict(self.options), allow_nan=False)
        except (TypeError, ValueError):
            raise InputError(f"options must be plain values that JSON has, not {quoted(dict(self.options))}") from None
        if self.key_variable is not None and parts.scheme == "http" and not is_loopback(parts.hostname):
            raise InputError(
                f"a key would go unencrypted to {parts.hostname}: give an https address, or leave key_variable out"
            )

    @property
    def name(self) -> str:
        """For provenance: nothing secret is in it."""
        return f"{self.model} at {self.url}"

    def identity(self) -> dict[str, Any]:
        """What its answers depend on."""
        return {"url": self.url, "model": self.model, "tokens": self.tokens, "options": dict(self.options)}

    def body(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        """The request."""
        plain = {"model": self.model, "messages": messages, "temperature": 0, "max_tokens": self.tokens}
        return {name: value for name, value in {**plain, **self.options}.items() if value is not None}

    def key(self) -> str | None:
        """The key, if one is needed; raises InputError where its variable is not set, or holds what is none."""
        if self.key_variable is None:
            return None
        key = os.environ.get(self.key_variable, "").strip()
        if not key:
            raise InputError(
                f"the environment has no {self.key_variable}: set it to the key, or leave key_variable out"
            )
        if not key.isascii() or not key.isprintable():
            raise InputError(f"what {self.key_variable} holds is no key: it has characters that no header takes")
        return key

    def __call__(self, messages: list[dict[str, str]]) -> str:
        """The answer to a chat; empty where the model refuses.

        Raises: EndpointError: it does not answer, or refuses the request. InputError: the key is not there.
        """
        key = self.key()
        request = urllib.request.Request(
            self.url.rstrip("/") + PATH,
            json.dumps(self.body(messages)).encode(),
            {
                "Content-Type": "application/json",
                "User-Agent": f"ffnmem/{__version__}",
                **({} if key is None else {"Authorization": f"Bearer {key}"}),
            },
            method="POST",
        )
        for tried in range(self.retries + 1):
            pause = PAUSE * 2**tried
            try:
                status, reason, headers, data = self.send(request)
                if status < 300:
                    return mask_key(read_completion(data), key)
            except Garbled as error:
                wrong = f"{self.name} {error}"
            except (OSError, HTTPException) as error:
                cause = getattr(error, "reason", error)
                if isinstance(cause, TimeoutError):
                    raise EndpointError(f"{self.name} did not answer within {self.timeout:g} s") from None
                wrong = (
                    f"{self.name} cannot be reached: {mask_key(str(getattr(cause, 'strerror', None) or cause), key)}"
                )
            else:
                wrong = self.refused(status, reason, data, key)
                if status not in AGAIN:
                    raise EndpointError(wrong)
                pause = read_pause(headers, pause)
                if pause > LONGEST_PAUSE:
                    raise EndpointError(f"{wrong}: it asks to wait {pause:.0f} s; call again then")
            if tried < self.retries:
                time.sleep(min(pause, LONGEST_PAUSE))
        raise EndpointError(f"{wrong} (tried {counted(self.retries + 1, 'time')})")

    def send(self, request: urllib.request.Request) -> tuple[int, str, Any, bytes]:
        """What the server says to one request: the status, its reason, headers and data.

        Raises: TimeoutError: it is silent for ``timeout`` seconds, or its answer is not there in full by then.
        Garbled: more than anybody needs. OSError, HTTPException.
        """
        end = time.monotonic() + self.timeout
        here = is_loopback(urlsplit(self.url).hostname or "")
        opener = urllib.request.build_opener(NoRedirect, *([urllib.request.ProxyHandler({})] if here else []))
        try:
            response: Any = opener.open(request, timeout=self.timeout)
        except urllib.error.HTTPError as error:
            response = error
        data = b""
        with response:
            while part := response.read1(LARGEST):
                data += part
                if len(data) > LARGEST:
                    raise Garbled(f"answers with more than {LARGEST:,} bytes")
                if time.monotonic() > end:
                    raise TimeoutError
        return response.status, str(response.reason), response.headers, data

    def refused(self, status: int, reason: str, data: bytes, key: str | None) -> str:
        """What the server said, in words, without the key."""
        text = data.decode("utf-8", "replace")
        try:
            said = json.loads(text)["error"]
            text = said["message"] if isinstance(said, dict) else str(said)
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        text = mask_key(str(text), key).strip()
        where = f"{self.name} says {status} {mask_key(reason, key)}"
        if status in (401, 403):
            missing = (
                "no key was sent (key_variable)" if key is None else f"the key in {self.key_variable} is not taken"
            )
            where += f", {missing}"
        elif 300 <= status < 400:
            where += ", which leads elsewhere: give the address that it is at"
        return f"{where}: {text[:300]}" if text else where


def mask_key(text: str, key: str | None) -> str:
    """A text of the server's without the key, whichever of its characters are percent-encoded or escaped."""
    if key is None:
        return text
    return re.sub("".join(rf"(?:{re.escape(one)}|(?:%(?:25)*|\\u00)(?i:{ord(one):02x}))" for one in key), "…", text)


class Garbled(Exception):
    """An answer that is none."""


def read_completion(data: bytes) -> str:
    """The text of a chat completion; empty where the model refuses. Raises Garbled."""
    try:
        choice = json.loads(data)["choices"][0]
        message = choice["message"]
        content = message.get("content")
        if message.get("refusal") or choice.get("finish_reason") == "content_filter" or content is None:
            return ""
        if not isinstance(content, str):
            raise TypeError
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        raise Garbled("answers with what is no chat completion") from None
    return content.encode("utf-8", "replace").decode("utf-8")


def read_pause(headers: Message[str, str], usual: float) -> float:
    """The seconds that the server asks to wait (a number, or a date), or the usual ones."""
    said = headers.get("Retry-After", "").strip()
    if re.fullmatch(r"\d{1,9}(\.\d+)?", said):
        return float(said)
    try:
        return max(email.utils.parsedate_to_datetime(said).timestamp() - time.time(), 0.0)
    except (TypeError, ValueError):
        return usual


def is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def mask_secrets(url: str) -> str:
    """An address without what may be secret in it."""
    return re.sub(r"//[^/@]*@", "//…@", url).partition("?")[0]
