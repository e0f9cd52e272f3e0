"""Chooses the next token from logits. One sampler per sequence: it owns the counts and the random generator.

Order of steps and their meaning follow vLLM: ban EOS below ``min_tokens``; repetition, frequency and presence
penalties; then argmax at temperature 0, else temperature, min_p, top_k, top_p and one draw.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from opsin.engine.api import SamplingParams

GREEDY_BELOW = 1e-5
"""A temperature under this is greedy, as in vLLM: scores divided by it leave the range of float32."""

_BANNED = float("-inf")


class Sampler:
    """Sampling state of one sequence. All tensors are float32 of shape (vocabulary,) on the device of the logits."""

    def __init__(
        self, sampling: SamplingParams, prompt_ids: Sequence[int], eos_token_ids: Sequence[int], device: torch.device
    ) -> None:
        self._sampling = sampling
        self._eos_token_ids = list(eos_token_ids)
        self._prompt_ids = frozenset(prompt_ids)
        self._generator = torch.Generator(device=device)
        if sampling.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(sampling.seed)
        self._drawn: tuple[int, torch.Tensor] | None = None

    def is_argmax(self, output_ids: Sequence[int]) -> bool:
        """Whether the next token is that of the highest logit, whatever the logits."""
        sampling = self._sampling
        return (
            sampling.temperature < GREEDY_BELOW
            and len(output_ids) >= sampling.min_tokens
            and sampling.repetition_penalty == 1.0
            and not (sampling.frequency_penalty or sampling.presence_penalty)
        )

    def sample(self, logits: torch.Tensor, output_ids: Sequence[int]) -> int:
        """The next token, given logits (vocabulary,) and the tokens generated so far.

        Asked again behind the same tokens, because a forward failed for somebody else, it draws the same again.
        """
        scores = self._penalised(logits.float(), output_ids)
        if self._sampling.temperature < GREEDY_BELOW:
            return int(scores.argmax())
        probabilities = self.distribution(scores)
        self._rewind(len(output_ids))
        return int(torch.multinomial(probabilities, num_samples=1, generator=self._generator))

    def distribution(self, scores: torch.Tensor) -> torch.Tensor:
        """Probabilities (vocabulary,) after temperature, min_p, top_k and top_p; sums to 1."""
        sampling = self._sampling
        scores = scores / sampling.temperature
        scores = _min_p(scores, sampling.min_p)
        scores = _top_k(scores, sampling.top_k)
        return torch.softmax(_top_p(scores, sampling.top_p), dim=-1)

    def _rewind(self, num_tokens: int) -> None:
        """To where the generator was before it drew the token behind so many, if it did that last."""
        if self._drawn is not None and self._drawn[0] == num_tokens:
            self._generator.set_state(self._drawn[1])
        else:
            self._drawn = num_tokens, self._generator.get_state()

    def _penalised(self, scores: torch.Tensor, output_ids: Sequence[int]) -> torch.Tensor:
        scores = scores.clone()
        if len(output_ids) < self._sampling.min_tokens:
            scores[self._eos_token_ids] = _BANNED
        if self._sampling.repetition_penalty != 1.0:
            self._penalise_repetition(scores, output_ids)
        if output_ids and (self._sampling.frequency_penalty or self._sampling.presence_penalty):
            self._penalise_counts(scores, output_ids)
        return scores

    def _penalise_repetition(self, scores: torch.Tensor, output_ids: Sequence[int]) -> None:
        """Keskar et al. 2019 (CTRL), eq. in section 4.1: seen tokens, prompt included, lose a factor towards zero."""
        seen = torch.tensor(list(self._prompt_ids.union(output_ids)), device=scores.device)
        penalty = self._sampling.repetition_penalty
        scores[seen] = torch.where(scores[seen] > 0, scores[seen] / penalty, scores[seen] * penalty)

    def _penalise_counts(self, scores: torch.Tensor, output_ids: Sequence[int]) -> None:
        """OpenAI's rule: score - count * frequency_penalty - (count > 0) * presence_penalty, over the output only."""
        counts = Counter(output_ids)
        seen = torch.tensor(list(counts.keys()), device=scores.device)
        times = torch.tensor(list(counts.values()), device=scores.device)
        scores[seen] -= times * self._sampling.frequency_penalty + self._sampling.presence_penalty


def _min_p(scores: torch.Tensor, min_p: float) -> torch.Tensor:
    """Bans tokens less likely than ``min_p`` times the likeliest."""
    if min_p <= 0.0:
        return scores
    probabilities = torch.softmax(scores, dim=-1)
    return scores.masked_fill(probabilities < min_p * probabilities.max(), _BANNED)


def _top_k(scores: torch.Tensor, top_k: int) -> torch.Tensor:
    """Keeps the ``top_k`` likeliest tokens and those that tie with the last of them; 0 or less keeps all."""
    if top_k <= 0 or top_k >= scores.numel():
        return scores
    return scores.masked_fill(scores < scores.topk(top_k).values[-1], _BANNED)


def _top_p(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keeps the smallest set of likeliest tokens whose probabilities reach ``top_p``; at least one."""
    if top_p >= 1.0:
        return scores
    ordered, indices = scores.sort(descending=True)
    probabilities = torch.softmax(ordered, dim=-1)
    # A token is out when those before it already reach top_p; nothing is before the first.
    before = probabilities.cumsum(dim=-1) - probabilities
    out = before >= top_p
    out[0] = False
    return scores.masked_fill(torch.zeros_like(out).scatter(0, indices, out), _BANNED)
