"""What is believed to be at an upstream that nobody else asks."""

from __future__ import annotations

from opsin.engine.upstream.known import KnownPictures


def test_what_was_sent_is_there_until_it_was_missed_and_what_is_missed_again_and_again_is_not_tried() -> None:
    known = KnownPictures()
    known.sent(["a", "b"])
    assert known.among(["a", "b", "c"]) == {"a", "b"}
    known.missed("a")
    assert known.among(["a", "b"]) == {"b"}
    known.sent(["a"])
    known.found(["a"])  # a miss long ago is forgiven
    known.missed("a")
    known.sent(["a"])
    assert known.among(["a"]) == {"a"}
    known.missed("a")
    known.sent(["a"])
    assert known.among(["a"]) == set()
    known.clear()
    assert known.among(["a", "b"]) == set()


def test_the_least_recently_used_names_are_forgotten() -> None:
    known = KnownPictures(max_names=2)
    known.sent(["a", "b"])
    known.found(["a"])
    known.sent(["c"])
    assert known.among(["a", "b", "c"]) == {"a", "c"}
