from __future__ import annotations

from opsin.core import errors
from opsin.core.errors import MediaError, OpsinError

OFFICIAL_SDKS_RETRY = {408, 409, 429}


def _tree(root: type[OpsinError]) -> list[type[OpsinError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in _tree(child))]


def test_every_error_of_the_module_is_drawn_in_its_docstring() -> None:
    assert errors.__doc__ is not None
    for error in _tree(OpsinError):
        assert error.__name__ in errors.__doc__


def test_bad_media_is_never_retried_by_a_client() -> None:
    for error in _tree(MediaError):
        assert error.status not in OFFICIAL_SDKS_RETRY
        assert 400 <= error.status < 500
        assert not error.retryable


def test_every_error_has_a_code_of_its_own_or_its_parents() -> None:
    for error in _tree(OpsinError):
        assert error("m").code == error.default_code
