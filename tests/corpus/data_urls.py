"""One picture in every dialect of data: URLs that some server reads, and what it is here."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from urllib.parse import quote

from tests.corpus.pictures import encoded, scene

PNG = encoded(scene(), "png")
BASE64 = base64.b64encode(PNG + bytes((1 - len(PNG)) % 3)).decode()
"""Ends in padding, and has both characters in which the alphabets differ; what follows a PNG does not belong to it."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """A way to write the picture. ``refusal`` is the code of a refused one; ``warning`` of one that is read anyway."""

    name: str
    url: str
    refusal: str | None = None
    warning: str | None = None

    @property
    def outcome(self) -> str:
        """As docs/api.md says it."""
        if self.refusal is not None:
            return f"`{self.refusal}`"
        return "read" if self.warning is None else f"read, with the warning `{self.warning}`"


def _wrapped(separator: str) -> str:
    return separator.join(BASE64[start : start + 76] for start in range(0, len(BASE64), 76))


def _plain(payload: str) -> str:
    return f"data:image/png;base64,{payload}"


_PLUS_LOST = "`+` that became a space, unless the length still fits"
_LONG_HEADER = "more than 256 characters before the comma"

DIALECTS = (
    Dialect("`data:image/png;base64,…`", _plain(BASE64)),
    Dialect("`DATA:` in capitals", f"DATA:image/png;base64,{BASE64}"),
    Dialect("`;BASE64` in capitals", f"data:image/png;BASE64,{BASE64}"),
    Dialect("no media type: `data:;base64,`", f"data:;base64,{BASE64}"),
    Dialect("parameters: `;charset=utf-8;base64`", f"data:image/png;charset=utf-8;base64,{BASE64}"),
    Dialect("lines of 76 columns, as MIME has them", _plain(_wrapped("\n"))),
    Dialect("lines that end in CR LF", _plain(_wrapped("\r\n"))),
    Dialect("a line break at the end", _plain(BASE64 + "\n")),
    Dialect("spaces, tabs and form feeds", _plain(_wrapped(" \t\f"))),
    Dialect("no padding", _plain(BASE64.rstrip("="))),
    Dialect("another picture's media type", f"data:image/jpeg;base64,{BASE64}", warning="media_type_mismatch"),
    Dialect("`text/html`", f"data:text/html;base64,{BASE64}", warning="media_type_mismatch"),
    Dialect("no `;base64`: `data:image/png,`", f"data:image/png,{BASE64}", "invalid_data_url"),
    Dialect("a parameter after `;base64`", f"data:image/png;base64;name=a,{BASE64}", "invalid_data_url"),
    Dialect("a space in `; base64`", f"data:image/png; base64,{BASE64}", "invalid_data_url"),
    Dialect("no comma", f"data:image/png;base64{BASE64}", "invalid_data_url"),
    Dialect("more than 256 characters before the comma", f"data:{'x' * 257};base64,{BASE64}", "invalid_data_url"),
    Dialect(
        "`+` that became a space, unless the length still fits", _plain(BASE64.replace("+", " ")), "invalid_data_url"
    ),
    Dialect("percent-encoding", _plain(quote(BASE64, safe="")), "invalid_data_url"),
    Dialect("the URL-safe alphabet", _plain(BASE64.replace("+", "-").replace("/", "_")), "invalid_data_url"),
    Dialect("padding in the middle", _plain(f"{BASE64[:-4]}AA=={BASE64[-4:]}"), "invalid_data_url"),
    Dialect("too much padding", _plain(BASE64 + "="), "invalid_data_url"),
    Dialect("a length that no base64 has", _plain(BASE64.rstrip("=")[:-1]), "invalid_data_url"),
    Dialect("a fragment: `#…`", _plain(BASE64 + "#top"), "invalid_data_url"),
    Dialect("characters outside ASCII", _plain(BASE64[:-4] + "한글=="), "invalid_data_url"),
    Dialect("a null byte", _plain(BASE64[:40] + "\0" + BASE64[40:]), "invalid_data_url"),
    Dialect("nothing after the comma", _plain(""), "image_truncated"),
    Dialect("base64 without `data:`", BASE64, "invalid_media_url"),
    Dialect("white space before `data:`", " " + _plain(BASE64), "invalid_media_url"),
)
