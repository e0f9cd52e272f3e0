"""Fields that opsin does not read and an engine does: taken out of a body as the bytes that came.

Tools, log probabilities, constrained output and whatever an engine invents pass through unchanged. What stays is
identity, limits and code, see ``stays`` in :mod:`opsin.protocol.fields`.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from opsin.core.conversation import Fields
from opsin.core.errors import Code, InvalidRequest
from opsin.protocol.fields import Place, is_relayed

Raw = dict[str, msgspec.Raw]


@dataclass(frozen=True, slots=True)
class Relayed:
    """Fields of the request, and of each of its messages in order."""

    request: Fields
    messages: tuple[Fields, ...]

    def mentions(self, text: bytes) -> bool:
        """Whether it stands in any value."""
        return any(text in value for fields in (self.request, *self.messages) for _, value in fields)


_body = msgspec.json.Decoder(Raw)
_messages = msgspec.json.Decoder(list[Raw])


def relayed(body: bytes | bytearray) -> Relayed:
    """Of a body that is a valid request. Raises InvalidRequest where it is JSON only for a lenient parser."""
    try:
        fields = _body.decode(body)
        messages = _messages.decode(fields["messages"])
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InvalidRequest("the body is not valid JSON", code=Code.INVALID_JSON) from None
    return Relayed(_fields(Place.REQUEST, fields), tuple(_fields(Place.MESSAGE, message) for message in messages))


def _fields(place: Place, fields: Raw) -> Fields:
    return tuple((name, bytes(value)) for name, value in fields.items() if is_relayed(place, name))
