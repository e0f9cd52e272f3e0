"""What a request has in common with those before it that a replica may have kept: its key for routing.

The first picture, by its bytes: later turns of a conversation repeat it first, and its encoding is what costs most.
Without one, the messages up to the first of the user, which all turns of a conversation share. The tenant is no part of
it, so that a key is the same in every gateway and after a restart; what a replica may share between tenants is not
decided here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from opsin.core.conversation import Conversation, Message, TextPart
from opsin.engine.api import ChatPrompt, GenerationRequest

MAX_CHARS = 16 * 1024
"""Of the beginning of a conversation: others differ before that, and hashing 4 MB of text would take 8 ms."""


def affinity(request: GenerationRequest) -> bytes:
    """The key of a request to an engine that reads messages."""
    assert isinstance(request.prompt, ChatPrompt), "replicas apply their own templates: they read messages"
    for picture in request.pictures:
        assert picture.media is not None, "a picture without its bytes"
        return bytes.fromhex(picture.media.sha256)
    return _digest(request.prompt.conversation)


def _digest(conversation: Conversation) -> bytes:
    digest, left = hashlib.blake2b(digest_size=32), MAX_CHARS
    for message in _first_turn(conversation.messages):
        digest.update(f"\0{message.role}\0".encode())
        for part in message.parts:
            if isinstance(part, TextPart):
                digest.update(part.text[:left].encode(errors="surrogatepass"))
                left = max(0, left - len(part.text))
    return digest.digest()


def _first_turn(messages: tuple[Message, ...]) -> Iterator[Message]:
    for message in messages:
        yield message
        if message.role == "user":
            return
