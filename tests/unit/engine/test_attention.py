from __future__ import annotations

import pytest
import torch
from torch import nn

from opsin.engine.local import attention
from opsin.engine.local.attention import additive, attend, attend_causally, chunk_mask

HEADS, KV_HEADS, SIZE = 6, 2, 8


def tensors(start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    query = torch.randn(1, HEADS, stop - start, SIZE)
    return query, torch.randn(1, KV_HEADS, stop, SIZE), torch.randn(1, KV_HEADS, stop, SIZE)


@pytest.mark.parametrize(("start", "stop"), [(0, 600), (1, 256), (1, 257), (1, 258), (300, 556), (7, 1000)])
@torch.inference_mode()
def test_many_tokens_behind_others_see_what_each_of_them_may(start: int, stop: int):
    mask = chunk_mask(start, stop, torch.device("cpu"))
    summands = additive(mask, torch.float32)
    assert not isinstance(summands, dict)
    given = (*tensors(start, stop), summands)
    wanted, _ = attend(nn.Identity(), *given)
    got = attend_causally(*given)
    assert got.shape == wanted.shape == (1, stop - start, HEADS, SIZE)
    assert torch.allclose(got, wanted, atol=1e-5)


@pytest.mark.parametrize(("tokens", "is_masked"), [(1, True), (5, True), (5, False)])
@torch.inference_mode()
def test_query_heads_share_keys_as_if_each_had_its_own(tokens: int, is_masked: bool):
    torch.manual_seed(0)
    length = tokens + 4 if is_masked else tokens
    query = torch.randn(3, HEADS, tokens, SIZE)
    key, value = torch.randn(3, KV_HEADS, length, SIZE), torch.randn(3, KV_HEADS, length, SIZE)
    seen = (torch.rand(3, 1, tokens, length) < 0.7) if is_masked else torch.ones(tokens, length).tril().bool()
    seen[..., 0] = True
    own_key, own_value = (each.repeat_interleave(HEADS // KV_HEADS, dim=1) for each in (key, value))
    scores = (query @ own_key.transpose(2, 3) / SIZE**0.5).masked_fill(~seen, -torch.inf)
    wanted = (scores.softmax(-1) @ own_value).transpose(1, 2)
    summands = additive(seen if is_masked else None, torch.float32)
    assert not isinstance(summands, dict)
    got, _ = attend(nn.Identity(), query, key, value, summands)
    assert torch.allclose(got, wanted, atol=1e-5)


@torch.inference_mode()
def test_keys_that_no_query_of_a_block_may_see_are_left_out(monkeypatch: pytest.MonkeyPatch):
    seen: list[tuple[int, int]] = []

    def watched(*given: torch.Tensor) -> torch.Tensor:
        query, key, _value, mask, _scaling = given
        assert mask.shape[-2:] == (query.shape[2], key.shape[2])
        seen.append((query.shape[2], key.shape[2]))
        return query.transpose(1, 2)

    monkeypatch.setattr(attention, "_attended", watched)
    summands = additive(chunk_mask(100, 700, torch.device("cpu")), torch.float32)
    assert not isinstance(summands, dict)
    attend_causally(*tensors(100, 700), summands)
    assert seen == [(256, 356), (256, 612), (88, 700)]
