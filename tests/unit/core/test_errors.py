from __future__ import annotations

import msgspec

from opsin.core import errors
from opsin.core.errors import Code, MediaError, MediaUndecodable, OpsinError

OFFICIAL_SDKS_RETRY = {408, 409, 429}


def _tree(root: type[OpsinError]) -> list[type[OpsinError]]:
    """Those of the module; an engine may have one of its own that it never lets out."""
    children = [child for child in root.__subclasses__() if child.__module__ == errors.__name__]
    return [root, *(leaf for child in children for leaf in _tree(child))]


def test_every_error_of_the_module_is_drawn_in_its_docstring() -> None:
    assert errors.__doc__ is not None
    for error in _tree(OpsinError):
        assert error.__name__ in errors.__doc__


def test_bad_media_is_never_retried_by_a_client() -> None:
    for error in _tree(MediaError):
        assert error.status not in OFFICIAL_SDKS_RETRY
        assert 400 <= error.status < 500
        assert not error.retryable


def test_the_first_code_of_an_error_is_its_default() -> None:
    assert MediaUndecodable("m").code is Code.IMAGE_UNDECODABLE
    assert MediaUndecodable("m", code=Code.IMAGE_TRUNCATED).code is Code.IMAGE_TRUNCATED
    for error in _tree(OpsinError):
        assert error("m").code.error is error


def test_a_code_is_its_word() -> None:
    assert f"{Code.IMAGE_TRUNCATED}" == "image_truncated" == Code.IMAGE_TRUNCATED
    assert msgspec.json.decode(msgspec.json.encode(Code.IMAGE_TRUNCATED), type=Code) is Code.IMAGE_TRUNCATED
    assert all(code.name == code.upper() and code.remedy for code in Code)
