"""The ten pictures that ship with the demo model.

``python -m opsin.demo.examples`` draws the files anew; a test checks that they are what this file says.
"""

from __future__ import annotations

from pathlib import Path

from opsin.demo.scenes import BACKGROUNDS, CELLS, Number, Objects, Receipt, Scene, draw

FOLDER = Path(__file__).parent / "examples"


def _objects(shape: str, colour: str, count: int, cell: str = "center", background: int = 0, seed: int = 1) -> Objects:
    return Objects(shape, colour, count, CELLS.index(cell), BACKGROUNDS[background], seed)


EXAMPLES: dict[str, Scene] = {
    "red_circle": _objects("circle", "red", 1, "top left"),
    "purple_triangle": _objects("triangle", "purple", 1, "bottom right", background=2),
    "three_green_squares": _objects("square", "green", 3, background=3),
    "five_black_rings": _objects("ring", "black", 5, background=4),
    "orange_cross": _objects("cross", "orange", 1, "left", background=1),
    "before": _objects("star", "blue", 2, seed=5),
    "after": _objects("star", "yellow", 2, seed=6),
    "number_47": Number(47, "blue", BACKGROUNDS[3], 2),
    "number_8": Number(8, "red", BACKGROUNDS[0], 3),
    "receipt": Receipt(3285, 4),
}


def path(name: str) -> Path:
    """The shipped PNG file of an example."""
    return FOLDER / f"{name}.png"


def main() -> None:
    """Draws all files."""
    FOLDER.mkdir(exist_ok=True)
    for name, scene in EXAMPLES.items():
        draw(scene).save(path(name), optimize=True)


if __name__ == "__main__":
    main()
