"""From a prompt and its pictures' plans to token ids: rendered, tokenised, slots expanded.

Two promises. Text stays text: nothing that a user types becomes an added token of the model, so an ``<image>`` in a
question is a word and not a picture. And slots are ids: a picture's markers and image tokens replace the template's
placeholder after tokenisation, where no text can imitate them. A raw prompt alone is trusted, as its author's own. This
module knows no pixels and no engine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from opsin.core.conversation import Conversation, Message, Prompt, RawPrompt, TextPart
from opsin.core.errors import ConfigError, InvalidRequest
from opsin.prompt.spelling import spellings
from opsin.prompt.template import PROBE, ChatTemplate, TemplateMessage, TemplatePart, in_parts, reads_parts
from opsin.prompt.tokenizer import Tokenizer
from opsin.vision.plan import Placeholder, VisionPlan

_PRIVATE_USE = range(0xE000, 0xF900)

_NUM_CACHED_SLOTS = 64


@dataclass(frozen=True, slots=True)
class TokenisedPrompt:
    """Token ids of a rendered prompt, each of its ``num_pictures`` still one placeholder, and its text.

    ``markers_per_picture`` is ``Placeholder.num_markers``.
    """

    ids: tuple[int, ...]
    num_pictures: int
    text: str
    markers_per_picture: int = 0

    @property
    def text_tokens(self) -> int:
        """All but the placeholders, and the markers that are counted with a picture."""
        return len(self.ids) - self.num_pictures * (1 + self.markers_per_picture)


@dataclass(frozen=True, slots=True)
class BuiltPrompt:
    """Token ids with expanded slots. ``text`` is the rendered prompt, each picture still one placeholder."""

    ids: tuple[int, ...]
    image_tokens: int
    text: str


class PromptBuilder:
    """Builds prompts for one checkpoint; safe to share between requests."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        image_token: str,
        image_token_id: int,
        placeholder: Placeholder | None = None,
    ) -> None:
        """``image_token`` is the family's, ``image_token_id`` the model's id of it: a position of the encoder.

        ``placeholder`` is what the template writes for a picture, where it is another token.

        Raises:
            ConfigError: the tokenizer gives the image token another id, or does not know the placeholder, or the
                template can render neither form of message content.
        """
        found = tokenizer.token_id(image_token)
        if found != image_token_id or image_token_id not in tokenizer.added_token_ids:
            raise ConfigError(
                f"image token {image_token}: id {image_token_id} in config.json, {found} in tokenizer.json"
            )
        self._tokenizer = tokenizer
        self._template = template
        self._placeholder = placeholder or Placeholder(image_token)
        placeholder_id = tokenizer.token_id(self._placeholder.token)
        if placeholder_id is None or placeholder_id not in tokenizer.added_token_ids:
            raise ConfigError(f"tokenizer.json: {self._placeholder.token} is no added token; it stands for a picture")
        self._placeholder_id = placeholder_id
        self._image_token_id = image_token_id
        self._added_token = re.compile(spellings(tokenizer.added_tokens))
        # A slot of 17 tiles takes milliseconds to tokenise, and a checkpoint has few different ones.
        self._slot_ids = lru_cache(maxsize=_NUM_CACHED_SLOTS)(self._encode_slot)
        self._wants_parts = self._template_wants_parts()

    def settle(self, prompt: Prompt) -> Prompt:
        """The same prompt, but one turn of a chat for a raw text that has pictures and no placeholder.

        Raises:
            InvalidRequest: another number of placeholders than of pictures, or an id that is no token.
        """
        if not isinstance(prompt, RawPrompt):
            return prompt
        num_places, num_pictures = self._num_places(prompt), len(prompt.pictures)
        if num_places == num_pictures:
            return prompt
        if num_places == 0 and isinstance(prompt.text, str):
            return prompt.as_turn()
        raise InvalidRequest(
            f"the prompt has {num_places} placeholders {self._placeholder.token} for {num_pictures} pictures; it needs "
            "one for each, or, as text, none at all, to be sent with its pictures as one turn of a chat",
            param="prompt",
        )

    def build(self, prompt: Prompt, plans: Sequence[VisionPlan]) -> BuiltPrompt:
        """The ids of a settled prompt whose pictures have ``plans``, in prompt order. Raises as its two halves do."""
        return self.expand(self.tokenise(prompt), plans)

    def tokenise(self, prompt: Prompt) -> TokenisedPrompt:
        """The ids of a settled prompt before anything is known of its pictures.

        Raises:
            InvalidRequest: the template refuses the conversation or drops a picture of it, or a text is not Unicode.
        """
        tokenised = self._raw(prompt) if isinstance(prompt, RawPrompt) else self._tokenised(prompt)
        num_places, num_pictures = tokenised.ids.count(self._placeholder_id), sum(1 for _ in prompt.media())
        if num_places != num_pictures:
            raise InvalidRequest(
                f"the chat template has places for {num_places} pictures, the request has {num_pictures}"
            )
        if self._placeholder_id != self._image_token_id and self._image_token_id in tokenised.ids:
            raise InvalidRequest(
                f"the prompt has image tokens of its own (id {self._image_token_id}); a picture is written as "
                f"{self._placeholder.token}",
                param="prompt",
            )
        markers = self._placeholder.num_markers
        return TokenisedPrompt(tuple(tokenised.ids), num_pictures, tokenised.text, markers)

    def expand(self, prompt: TokenisedPrompt, plans: Sequence[VisionPlan]) -> BuiltPrompt:
        """With a slot for every placeholder.

        Raises:
            ConfigError: the tokenizer does not know the tokens of a plan's slot.
        """
        return BuiltPrompt(
            ids=tuple(self._with_slots(prompt.ids, plans)),
            image_tokens=sum(plan.image_tokens for plan in plans),
            text=prompt.text,
        )

    def least_tokens(self, prompt: Prompt) -> int:
        """Tokens that the prompt's text takes at least; costs nothing, unlike counting them.

        Not known of a raw text, because an added token may stand for any amount of it.
        """
        return 0 if isinstance(prompt, RawPrompt) else prompt.num_chars // self._tokenizer.max_token_chars

    def _num_places(self, prompt: RawPrompt) -> int:
        if isinstance(prompt.text, str):
            return sum(match[0] == self._placeholder.token for match in self._added_token.finditer(prompt.text))
        for token_id in prompt.text:
            if not 0 <= token_id <= self._tokenizer.max_token_id:
                raise InvalidRequest(
                    f"{token_id} is no token; ids go from 0 to {self._tokenizer.max_token_id}", param="prompt_token_ids"
                )
        return prompt.text.count(self._placeholder_id)

    def _raw(self, prompt: RawPrompt) -> _Tokenised:
        if isinstance(prompt.text, str):
            text = self._surrounded(prompt.text)
            return _Tokenised(self._tokenizer.encode(text), text)
        return _Tokenised(list(prompt.text), self._tokenizer.decode(prompt.text, skip_special_tokens=False))

    def _tokenised(self, conversation: Conversation) -> _Tokenised:
        """Ids before slots are expanded, in the gentlest way that keeps text text.

        If no text spells an added token, the rendered prompt is tokenised whole; if one does, only the spelling is cut
        out and encoded apart. The added tokens must then be those that the template writes around texts that it cannot
        see. If they are not (texts make a token with each other or with the template), every text is encoded apart.
        """
        marks = _unused_characters(self._template.source, conversation)
        spellings, texts = _Cuts(marks), _Cuts(marks)
        gentle = self._encoded(conversation, spellings, lambda text: self._added_token.sub(spellings.hide_match, text))
        strict = self._encoded(conversation, texts, texts.hide)
        return gentle if self._added(gentle) == self._added(strict) else strict

    def _encoded(self, conversation: Conversation, cuts: _Cuts, write: Callable[[str], str]) -> _Tokenised:
        messages = [self._message(message, write) for message in conversation.messages]
        ids: list[int] = []
        text: list[str] = []
        for piece, is_hidden in cuts.split(self._surrounded(self._template.render(messages))):
            ids += self._tokenizer.encode_plain(piece) if is_hidden else self._tokenizer.encode(piece)
            text.append(piece)
        return _Tokenised(ids, "".join(text))

    def _message(self, message: Message, write: Callable[[str], str]) -> TemplateMessage:
        if not self._wants_parts:
            picture = self._placeholder.token
            lines = (write(part.text) if isinstance(part, TextPart) else picture for part in message.parts)
            return {"role": message.role, "content": "\n".join(lines)}
        return in_parts(message, write)

    def _surrounded(self, rendered: str) -> str:
        """With the text that the model's processor writes around each picture."""
        token, before, after = self._placeholder.token, self._placeholder.before, self._placeholder.after
        return rendered.replace(token, f"{before}{token}{after}") if before or after else rendered

    def _added(self, prompt: _Tokenised) -> list[int]:
        return [token_id for token_id in prompt.ids if token_id in self._tokenizer.added_token_ids]

    def _with_slots(self, ids: Sequence[int], plans: Sequence[VisionPlan]) -> Iterator[int]:
        remaining = iter(plans)
        for token_id in ids:
            if token_id == self._placeholder_id:
                plan = next(remaining)
                yield from self._slot_ids(plan.slot, plan.image_tokens)
            else:
                yield token_id

    def _encode_slot(self, slot: str, image_tokens: int) -> tuple[int, ...]:
        ids = self._tokenizer.encode(slot)
        found = ids.count(self._image_token_id)
        if found != image_tokens:
            raise ConfigError(f"tokenizer.json: reads {found} image tokens in a slot of {image_tokens}")
        return tuple(ids)

    def _template_wants_parts(self) -> bool:
        """Whether content is a list of parts (the rule for pictures) or a string; found out by rendering both."""
        as_parts = self._probe([{"type": "image"}, {"type": "text", "text": PROBE}])
        if reads_parts(as_parts) and as_parts.count(self._placeholder.token) == 1:
            return True
        if PROBE in self._probe(PROBE):
            return False
        raise ConfigError("chat template: renders a user's content neither as a list of parts nor as a string")

    def _probe(self, content: str | list[TemplatePart]) -> str:
        try:
            return self._template.render([{"role": "user", "content": content}])
        except InvalidRequest:
            return ""


@dataclass(frozen=True, slots=True)
class _Tokenised:
    ids: list[int]
    text: str


class _Cuts:
    """Pieces of text taken out of a prompt before it is rendered, each leaving a numbered sentinel."""

    def __init__(self, marks: tuple[str, str]) -> None:
        self._opening, self._closing = marks
        self._pieces: list[str] = []

    def hide(self, piece: str) -> str:
        """Keeps a piece and returns the sentinel to render in its place; templates must still see that one is empty."""
        if not piece:
            return ""
        self._pieces.append(piece)
        return f"{self._opening}{len(self._pieces) - 1}{self._closing}"

    def hide_match(self, match: re.Match[str]) -> str:
        """``hide`` for ``re.sub``."""
        return self.hide(match[0])

    def split(self, rendered: str) -> Iterator[tuple[str, bool]]:
        """The rendered text in order: (template's text, False) and (hidden piece, True)."""
        sentinel = re.compile(f"{self._opening}([0-9]+){self._closing}")
        for position, piece in enumerate(sentinel.split(rendered)):
            if position % 2:
                yield self._pieces[int(piece)], True
            elif self._opening in piece or self._closing in piece:
                raise InvalidRequest(
                    "the chat template cuts a text in two; it cannot be kept apart from special tokens"
                )
            else:
                yield piece, False


def _unused_characters(source: str, conversation: Conversation) -> tuple[str, str]:
    """Two private-use characters that nothing of the prompt contains, so that no text can forge a sentinel."""
    used = set(source)
    for message in conversation.messages:
        used.update(*(part.text for part in message.parts if isinstance(part, TextPart)))
    unused = list(islice((chr(code) for code in _PRIVATE_USE if chr(code) not in used), 2))
    if len(unused) < 2:
        raise InvalidRequest(f"text uses all {len(_PRIVATE_USE)} private-use characters; at least 2 must be free")
    return unused[0], unused[1]
