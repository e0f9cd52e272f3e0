"""Drawn pictures whose content is known: the world that the demo model was trained on.

A :class:`Scene` says what is in a picture; :func:`draw` turns it into pixels. Training, evaluation and the
end-to-end tests share this file, so that a right answer is a fact about the picture and not about a data set.
Knows nothing of questions (:mod:`opsin.demo.tasks`), tokenizers or models.
"""

from __future__ import annotations

import functools
import math
import random
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

CANVAS = 256
"""Side in pixels of a drawn picture; the demo model's processor cuts it into 2x2 tiles of 128."""

SHAPES = ("circle", "square", "triangle", "star", "cross", "ring")
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (215, 30, 35),
    "green": (30, 150, 50),
    "blue": (35, 75, 215),
    "yellow": (245, 205, 20),
    "purple": (135, 45, 165),
    "orange": (245, 125, 15),
    "black": (20, 20, 20),
}
BACKGROUNDS = ((255, 255, 255), (238, 238, 238), (222, 234, 246), (246, 238, 222), (226, 240, 226))
CELLS = (
    "top left", "top", "top right",
    "left", "center", "right",
    "bottom left", "bottom", "bottom right",
)  # fmt: skip
MAX_COUNT = 5

_GOODS = ("TEA", "MILK", "BREAD", "RICE", "SOAP", "EGGS", "JAM", "FISH", "CAKE", "PEAR")


@dataclass(frozen=True, slots=True)
class Objects:
    """``count`` equal shapes; ``cell`` indexes CELLS and is meaningful when ``count`` is 1."""

    shape: str
    colour: str
    count: int
    cell: int
    background: tuple[int, int, int]
    layout_seed: int


@dataclass(frozen=True, slots=True)
class Number:
    """A number of one or two digits, written large."""

    value: int
    colour: str
    background: tuple[int, int, int]
    layout_seed: int


@dataclass(frozen=True, slots=True)
class Receipt:
    """A till receipt in small print: at 256 pixels its digits are about 9 pixels high, at 128 they are noise."""

    total_cents: int
    layout_seed: int

    @property
    def total(self) -> str:
        """The total as printed, e.g. ``"12.40"``."""
        return f"{self.total_cents // 100}.{self.total_cents % 100:02d}"


Scene = Objects | Number | Receipt


def random_objects(rng: random.Random, count: int | None = None) -> Objects:
    """Any shape and colour; ``count`` None draws 1 half of the time and 2 to MAX_COUNT otherwise."""
    if count is None:
        count = 1 if rng.random() < 0.5 else rng.randint(2, MAX_COUNT)
    return Objects(
        shape=rng.choice(SHAPES),
        colour=rng.choice(tuple(COLOURS)),
        count=count,
        cell=rng.randrange(9),
        background=rng.choice(BACKGROUNDS),
        layout_seed=rng.getrandbits(31),
    )


def random_number(rng: random.Random) -> Number:
    """0 to 99, each length of number likely."""
    return Number(
        value=rng.randrange(10) if rng.random() < 0.2 else rng.randrange(10, 100),
        colour=rng.choice(tuple(COLOURS)),
        background=rng.choice(BACKGROUNDS),
        layout_seed=rng.getrandbits(31),
    )


def random_receipt(rng: random.Random) -> Receipt:
    """A total of 10.00 to 99.99."""
    return Receipt(total_cents=rng.randrange(1000, 10000), layout_seed=rng.getrandbits(31))


def random_scene(rng: random.Random) -> Objects | Number:
    """A scene that can be read without tiles."""
    return random_objects(rng) if rng.random() < 0.65 else random_number(rng)


def draw(scene: Scene, size: tuple[int, int] = (CANVAS, CANVAS)) -> Image.Image:
    """Returns the picture as RGB of ``size`` (width, height). Deterministic in ``scene``."""
    rng = random.Random(scene.layout_seed)
    match scene:
        case Objects():
            picture = _draw_objects(scene, rng)
        case Number():
            picture = _draw_number(scene, rng)
        case Receipt():
            picture = _draw_receipt(scene, rng)
    return picture if size == picture.size else picture.resize(size, Image.Resampling.LANCZOS)


@functools.cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    """Pillow's own font: the same glyphs on every machine. Loading it costs more than drawing."""
    font = ImageFont.load_default(size=size)
    assert isinstance(font, ImageFont.FreeTypeFont)
    return font


def _tint(colour: tuple[int, int, int], rng: random.Random) -> tuple[int, int, int]:
    red, green, blue = (max(0, min(255, channel + rng.randint(-12, 12))) for channel in colour)
    return red, green, blue


def _draw_objects(scene: Objects, rng: random.Random) -> Image.Image:
    picture = Image.new("RGB", (CANVAS, CANVAS), scene.background)
    pen = ImageDraw.Draw(picture)
    cells = [scene.cell] if scene.count == 1 else rng.sample(range(9), scene.count)
    pitch = CANVAS / 3
    colour = _tint(COLOURS[scene.colour], rng)
    for cell in cells:
        radius = rng.uniform(27, 37)
        slack = pitch / 2 - radius
        x = pitch * (cell % 3 + 0.5) + rng.uniform(-slack, slack) * 0.8
        y = pitch * (cell // 3 + 0.5) + rng.uniform(-slack, slack) * 0.8
        _draw_shape(pen, scene.shape, (x, y), radius, colour, scene.background)
    return picture


def _draw_shape(
    pen: ImageDraw.ImageDraw,
    shape: str,
    centre: tuple[float, float],
    radius: float,
    colour: tuple[int, int, int],
    background: tuple[int, int, int],
) -> None:
    x, y = centre
    box = (x - radius, y - radius, x + radius, y + radius)
    match shape:
        case "circle":
            pen.ellipse(box, fill=colour)
        case "ring":
            hole = radius * 0.55
            pen.ellipse(box, fill=colour)
            pen.ellipse((x - hole, y - hole, x + hole, y + hole), fill=background)
        case "square":
            side = radius * 0.88
            pen.rectangle((x - side, y - side, x + side, y + side), fill=colour)
        case "cross":
            arm = radius * 0.32
            pen.rectangle((x - radius, y - arm, x + radius, y + arm), fill=colour)
            pen.rectangle((x - arm, y - radius, x + arm, y + radius), fill=colour)
        case "triangle":
            pen.polygon(_polygon(x, y, (radius, radius, radius)), fill=colour)
        case _:
            pen.polygon(_polygon(x, y, (radius, radius * 0.42) * 5), fill=colour)


def _polygon(x: float, y: float, radii: tuple[float, ...]) -> list[tuple[float, float]]:
    """Corners at equal angles, the first one straight up."""
    step = 2 * math.pi / len(radii)
    return [(x + r * math.sin(i * step), y - r * math.cos(i * step)) for i, r in enumerate(radii)]


def _draw_number(scene: Number, rng: random.Random) -> Image.Image:
    picture = Image.new("RGB", (CANVAS, CANVAS), scene.background)
    centre = (CANVAS / 2 + rng.uniform(-24, 24), CANVAS / 2 + rng.uniform(-24, 24))
    ImageDraw.Draw(picture).text(
        centre,
        str(scene.value),
        fill=_tint(COLOURS[scene.colour], rng),
        font=_font(rng.randint(124, 150)),
        anchor="mm",
    )
    return picture


def _draw_receipt(scene: Receipt, rng: random.Random) -> Image.Image:
    picture = Image.new("RGB", (CANVAS, CANVAS), (250, 250, 246))
    pen = ImageDraw.Draw(picture)
    small = _font(10)
    left, right = 60, 196
    pen.text((CANVAS / 2, 26), "RECEIPT", fill=(70, 70, 70), font=small, anchor="mm")
    row = 48
    for name in rng.sample(_GOODS, rng.randint(2, 5)):
        pen.text((left, row), name, fill=(110, 110, 110), font=small, anchor="lm")
        pen.text(
            (right, row), f"{rng.randint(1, 9)}.{rng.randrange(100):02d}", fill=(110, 110, 110), font=small, anchor="rm"
        )
        row += 20
    y = 208 + rng.randint(-1, 1)
    x = right + rng.randint(-1, 1)
    pen.line((left, y - 16, right, y - 16), fill=(120, 120, 120))
    pen.text((left, y), "TOTAL", fill=(15, 15, 15), font=small, anchor="lm")
    pen.text((x, y), scene.total, fill=(15, 15, 15), font=small, anchor="rm")
    return picture
