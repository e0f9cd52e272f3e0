"""After its warm-up a worker needs nothing from the disk any more, whatever picture comes."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from opsin.media import warm_up
from opsin.media.config import ACCEPTED_BY_DEFAULT
from opsin.media.decode import upright_rgb
from opsin.media.header import read_header
from opsin.media.types import ImageFormat
from tests.corpus.golden import golden_cases
from tests.corpus.golden_rare import rare_cases
from tests.corpus.pictures import bad_pictures, encoded, good_pictures, scene
from tests.corpus.rare import rare_bad_pictures, rare_good_pictures

DECODE_ALL = """
import pickle, sys, warnings
warnings.simplefilter("ignore")
from opsin.core.errors import MediaError
from opsin.media.header import read_header
from opsin.media.encoding import JPEG_95, PNG
from opsin.media.messages import RenderTask, ScaleTask, Setup
from opsin.media.types import ImageFormat
from opsin.media.warm_up import warm_up
from opsin.media.worker import _run
from opsin.vision.recipe import Filter, RenderRecipe, Resize, View
from opsin.vision.size import Size

formats = tuple(ImageFormat(name) for name in sys.argv[2:])
first = Resize(Size(8, 8), Filter.LANCZOS)
recipe = RenderRecipe(Size(4, 4), (View((first,), 2, 2), View((first, Resize(Size(4, 4), Filter.LANCZOS)))))
with open(sys.argv[1], "rb") as file:
    pictures = pickle.load(file)
warm_up(formats)
seen = []
sys.addaudithook(lambda event, arguments: seen.append(arguments[0]) if event in ("import", "open") else None)
for data in pictures:
    try:
        header = read_header(data, None, formats)
    except MediaError:
        continue
    if header.size.width * header.size.height < 25_000_000:
        _run(RenderTask(len(data), header, recipe), data, Setup(1, 1, formats))
        for encoding in (JPEG_95, PNG):
            _run(ScaleTask(len(data), header, Size(3, 2), encoding), data, Setup(1, 1, formats))
sys.exit(f"needed late: {seen}" if seen else 0)
"""


@pytest.mark.parametrize("formats", [ACCEPTED_BY_DEFAULT, tuple(ImageFormat)], ids=["by default", "all"])
def test_no_picture_needs_anything_from_the_disk(tmp_path: Path, formats: tuple[ImageFormat, ...]) -> None:
    corpus = (*good_pictures(), *bad_pictures(), *rare_good_pictures(), *rare_bad_pictures())
    golden = [case.build(6 if case.oriented else 1) for case in (*golden_cases(), *rare_cases())]
    extras = [
        encoded(scene(), "jpeg", icc_profile=bytes(500), comment=b"\xe9" * 9, dpi=(72, 72)),
        encoded(scene(), "png", icc_profile=bytes(500), dpi=(72, 72)),
        encoded(scene(), "webp", icc_profile=bytes(500), xmp=b"<x/>"),
    ]
    file = tmp_path / "pictures"
    file.write_bytes(pickle.dumps([*(picture.data for picture in corpus), *golden, *extras]))
    subprocess.run([sys.executable, "-c", DECODE_ALL, file, *formats], check=True)


@pytest.mark.parametrize("image_format", ImageFormat)
def test_the_samples_are_pictures_of_their_format(image_format: ImageFormat) -> None:
    for sample in warm_up.samples(image_format):
        header = read_header(sample, None, (image_format,))
        assert header.format is image_format
        picture = upright_rgb(sample, header)
        assert (picture.size, picture.mode) == ((2, 2), "RGB")
