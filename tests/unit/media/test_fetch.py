"""What the attacks under ``tests/attacks`` do not reach."""

from __future__ import annotations

import inspect

import aiohttp
from aiohttp import client_exceptions, http_exceptions

from opsin.media.fetch import FAILURES, Fetcher
from opsin.media.fetch_config import FetchConfig

OF_WEBSOCKETS = {client_exceptions.WSMessageTypeError}


def test_every_error_of_the_client_library_is_translated() -> None:
    raised = {
        error
        for module in (aiohttp, client_exceptions, http_exceptions)
        for _, error in inspect.getmembers(module, inspect.isclass)
        if issubclass(error, Exception) and error.__module__ in (client_exceptions.__name__, http_exceptions.__name__)
    }
    assert len(raised) > 30
    assert {error for error in raised if not issubclass(error, FAILURES)} == OF_WEBSOCKETS


def test_while_fetching_is_off_no_certificates_are_read() -> None:
    Fetcher(FetchConfig.model_validate({"ca_file": "/absent"}), 1)
