"""What sticks together: the same picture first, and else the turns of one conversation."""

from __future__ import annotations

import hashlib

from opsin.core.conversation import Conversation, Detail, MediaRef, Message, Part, Role, TextPart
from opsin.engine.api import ChatPrompt, GenerationRequest, Picture, SamplingParams
from opsin.engine.replicas.affinity import MAX_CHARS, affinity
from opsin.media.types import ImageFormat, ImageHeader, MediaBytes
from opsin.vision.plan import Size

HEADER = ImageHeader(ImageFormat.PNG, Size(2, 2), 1, 1)


def said(role: Role, *texts: str) -> Message:
    return Message(role, tuple(map(TextPart, texts)))


def key(*messages: Message, pictures: tuple[bytes, ...] = (), scope: str = "s", id: str = "r") -> bytes:
    media = [MediaBytes(data, hashlib.sha256(data).hexdigest(), HEADER, "p") for data in pictures]
    refs: list[Part] = [MediaRef("data:", Detail.AUTO, "p") for _ in media]
    return affinity(
        GenerationRequest(
            id=id,
            scope=scope,
            prompt=ChatPrompt(Conversation((*messages, Message("user", tuple(refs))) if refs else messages)),
            pictures=tuple(
                Picture(key=f"{scope}-{one.sha256}", image_tokens=None, num_tiles=None, media=one) for one in media
            ),
            sampling=SamplingParams(),
            submitted_at=0.0,
        )
    )


def test_all_turns_of_a_conversation_are_one() -> None:
    first = (said("system", "Be brief."), said("user", "What is it?"))
    assert key(*first, id="1") == key(*first, said("assistant", "A circle."), said("user", "And there?"), id="2")


def test_another_beginning_is_another_key() -> None:
    keys = {
        key(said("user", "a")),
        key(said("user", "b")),
        key(said("system", "a"), said("user", "a")),
        key(said("system", "aa"), said("user", "")),
        key(said("system", ""), said("user", "aa")),
        key(said("user", "x" * MAX_CHARS + "a")),
    }
    assert len(keys) == 6
    assert key(said("user", "x" * MAX_CHARS + "a")) == key(said("user", "x" * MAX_CHARS + "b"))


def test_the_first_picture_outweighs_all_texts_and_whoever_asks() -> None:
    one = key(said("user", "What?"), pictures=(b"red", b"blue"), scope="a")
    assert one == key(said("system", "Else."), pictures=(b"red",), scope="b")
    assert one != key(said("user", "What?"), pictures=(b"blue", b"red"))
