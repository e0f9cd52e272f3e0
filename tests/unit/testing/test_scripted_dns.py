from __future__ import annotations

import threading

import pytest

from opsin.testing.scripted_dns import ScriptedDns


def test_answers_come_in_turn_and_the_last_one_stays() -> None:
    dns = ScriptedDns({"a": [["1.1.1.1"], ["2.2.2.2"]]})
    assert ["".join(dns("a")) for _ in range(3)] == ["1.1.1.1", "2.2.2.2", "2.2.2.2"]
    assert dns.asked == ["a", "a", "a"]


def test_no_answer_is_a_failure() -> None:
    dns = ScriptedDns({"empty": [[]]})
    for name in ("empty", "absent"):
        with pytest.raises(OSError):
            dns(name)


def test_a_hanging_name_waits_for_its_release() -> None:
    dns = ScriptedDns({"a": [["1.1.1.1"]]}, hanging=frozenset({"a"}))
    answered = threading.Event()
    thread = threading.Thread(target=lambda: (dns("a"), answered.set()))
    thread.start()
    assert not answered.wait(0.05)
    dns.release()
    assert answered.wait(10)
    thread.join()
