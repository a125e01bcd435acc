"""Messages as the text that a model's chat template makes of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core.errors import InputError, InputTypeError, check_text
from ..core.foreign import foreign
from ..core.provenance import Provenance

Messages = Sequence[Mapping[str, str]]
"""A conversation in order: each message with its "role" and its "content"."""


class ChatText(str):
    """The text of some messages, made by :meth:`ffnmem.Model.chat_text`. Functions that take a prompt take it too.

    No beginning-of-sequence token is added to it by default: the template writes one where its model expects one.

    Attributes:
        made_of: for provenances: the messages' roles, and a digest of the template.
    """

    made_of: Mapping[str, str]

    def __new__(cls, text: str, made_of: Mapping[str, str]) -> ChatText:
        found = super().__new__(cls, text)
        found.made_of = made_of
        return found


def render_chat(tokenizer: Any, name: str, messages: Messages) -> ChatText:
    """Messages by the tokenizer's chat template, up to where the model's own begins; ``name``: of the model.

    transformers renders templates in a sandbox.

    Raises: InputError: no template, or one that does not take these messages. InputTypeError: no messages.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise InputError(f"{name}'s tokenizer has no chat template, so it takes no messages: give a text as the prompt")
    if not messages or not all(isinstance(one, Mapping) and {"role", "content"} <= {*one} for one in messages):
        raise InputTypeError('messages must be a list of dicts such as {"role": "user", "content": "Hello"}')
    for message in messages:
        for part in ("role", "content"):
            check_text(f"a message's {part}", message[part])
    with foreign(InputError, f"the chat template of {name} does not take these messages"):
        template = tokenizer.get_chat_template()
        text = tokenizer.apply_chat_template([*map(dict, messages)], tokenize=False, add_generation_prompt=True)
    digest = hashlib.sha256(template.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return ChatText(text, {"chat": ", ".join(message["role"] for message in messages), "chat_template": digest})


def prompt_provenance(provenance: Provenance, prompts: Any, begins: bool) -> Provenance:
    """The provenance of a result about a prompt, or a list of them, which says of messages what made their text.

    Args:
        begins: whether the prompt's tokens begin with the beginning-of-sequence token.
    """
    texts = prompts if isinstance(prompts, list | tuple) else [prompts]
    made = [text.made_of for text in texts if isinstance(text, ChatText)]
    if not made:
        return provenance
    settings = {name: "; ".join(dict.fromkeys(one[name] for one in made)) for name in made[0]}
    return replace(provenance, prepend_bos=begins).with_settings(**settings)
