from __future__ import annotations

import io
import sys

import pytest

from opsin.llm.progress import loading, progress


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "shown"), [(_Terminal(), True), (_Terminal(), False), (io.StringIO(), True)])
def test_it_is_shown_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, shown: bool) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    with progress(3, shown=shown) as advance:
        for _ in range(3):
            advance()
    assert ("3/3" in stream.getvalue()) == (shown and stream.isatty())
    assert bool(stream.getvalue()) == (shown and stream.isatty())


@pytest.mark.parametrize("stream", [_Terminal(), io.StringIO()])
def test_that_a_model_loads_is_in_the_log_and_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stream: io.StringIO
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    caplog.set_level("INFO")
    with loading("org/model"):
        pass
    assert caplog.messages == ["loading org/model"]
    assert ("loading org/model …" in stream.getvalue()) == stream.isatty()
