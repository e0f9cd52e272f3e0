"""The load of three tenants on a gateway of this process, and the verdict on records made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.tenants import ABUSE, PICTURES, TENANTS, TEXTS, Asked, Mouth, Round, checks, load, make_keys
from opsin.testing.chat_client import Reply
from tests.integration.gateways import gateway

WORDS = " ".join(["word"] * 12)


def asked(tenant: str, number: int, latency_s: float = 1.0) -> Asked:
    return Asked(tenant, f"nonce-{number:x}", latency_s, Reply(200, f"nonce-{number:x}", "red"))


GOOD = Round([asked(TEXTS.name, 1), asked(PICTURES.name, 2)], [asked(TEXTS.name, 3, 1.4), asked(PICTURES.name, 4)])
LOG = [f"INFO request_id=chatcmpl-{number} clients_id=nonce-{number:x} status=200" for number in range(1, 5)]


def wrong(found: Round, log: list[str] = LOG) -> list[str]:
    return [check.name for check in checks([found], log) if not check.holds]


def test_the_verdict_fails_when_something_was_wrong() -> None:
    assert wrong(GOOD) == []
    assert wrong(GOOD, LOG[:-1]) == wrong(GOOD, [*LOG, LOG[0]]) == ["and in exactly one line of the log"]
    slow = replace(GOOD, beside=[asked(TEXTS.name, 3, 1.6), asked(PICTURES.name, 4)])
    assert wrong(slow) == ["p95 of texts within 1.5 times"]
    lost = replace(GOOD, beside=[*GOOD.beside, Asked(ABUSE.name, "nonce-1", 1.0, failure="ClientError: gone")])
    assert wrong(lost) == ["every nonce in exactly one answer", "abuse is answered or told to wait"]
    refusal = Asked(TEXTS.name, "nonce-3", 1.0, Reply(429, "nonce-3", code="too_many_in_progress"))
    refused = replace(GOOD, beside=[refusal, GOOD.beside[0], GOOD.beside[1]])
    assert "none of the two's requests refused" in wrong(refused)


async def test_two_of_three_tenants_notice_nothing_of_the_third_but_its_share(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Three times the rates for a second. However slow the machine, the two cannot fill what the third leaves free."""
    caplog.set_level("INFO")
    tenants = [replace(one, per_s=one.per_s * 3) for one in TENANTS]
    keys = await make_keys(tmp_path / "keys", tenants)
    fake = {"text": WORDS, "itl_s": 0.005, "max_num_seqs": 4}
    async with gateway(fake=fake, gateway={"api_keys_file": str(tmp_path / "keys")}) as served:
        beside = await load(served.url, keys, {one: Mouth(one, 20) for one in tenants}, seconds=1.0)
        assert served.application.gateway.admission.in_progress == 0
    verdict = {check.name: check for check in checks([Round([], beside)], caplog.messages)}
    for name in (
        "every nonce in exactly one answer",
        "and in exactly one line of the log",
        "none of the two's requests refused",
        "abuse is answered or told to wait",
    ):
        assert verdict[name].holds, verdict[name]
    assert sum(one.tenant == ABUSE.name and one.reply is not None and one.reply.status == 429 for one in beside) > 20
