"""Beside the code of the second seed: the same pixels in the same bytes, from a sandbox, and kept."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import pytest
from PIL import Image

from opsin import ImagePreprocessor
from opsin.cli.main import main
from opsin.core.errors import ConfigError, MediaError
from opsin.preprocessing import Fitting
from opsin.vision.size import Size


def picture(width: int, height: int) -> bytes:
    buffer = io.BytesIO()
    Image.radial_gradient("L").resize((width, height)).convert("RGB").save(buffer, "PNG")
    return buffer.getvalue()


def of_the_seed(data: bytes, max_size: int = 2048, min_size: int = 28) -> str:
    """As it stands there, without its cache."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    w, h = image.size
    if max(w, h) > max_size:
        ratio = max_size / max(w, h)
        w, h = int(w * ratio), int(h * ratio)
    w = max(min_size, (w // 28) * 28)
    h = max(min_size, (h // 28) * 28)
    buffer = io.BytesIO()
    image.resize((w, h), Image.Resampling.LANCZOS).save(buffer, format="JPEG", quality=85)
    return base64.b64encode(buffer.getvalue()).decode("utf-8")


def test_the_same_as_the_seeds_and_a_second_time_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_IMAGE_SIZE", "300")
    with ImagePreprocessor() as preprocessor:
        for size in ((640, 480), (100, 50), (20, 90)):
            assert preprocessor.process(picture(*size)) == of_the_seed(picture(*size), max_size=300)
            assert preprocessor.process(picture(*size)) == of_the_seed(picture(*size), max_size=300)
        with pytest.raises(MediaError):
            preprocessor.process(b"no picture")


def test_sides_are_multiples_of_the_models_own_blocks() -> None:
    assert Fitting(2048, 28).fit(Size(4000, 3000)) == Size(2044, 1512)
    assert Fitting(1024, 32, block=32).fit(Size(1000, 33)) == Size(992, 32)
    assert Fitting(2048, 28).fit(Size(5, 5)) == Size(28, 28)


@pytest.mark.parametrize(
    ("name", "value"), [("MAX_IMAGE_SIZE", "0"), ("MAX_IMAGE_SIZE", "wide"), ("OUTPUT_FORMAT", "xml")]
)
def test_a_wrong_environment_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=name):
        ImagePreprocessor()


def test_the_command_prints_base64_and_names_what_is_no_picture(
    tmp_path: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(str(tmp_path))
    for name, data in (("a.png", picture(60, 60)), ("b.png", b"no picture")):
        with open(name, "wb") as file:  # noqa: PTH123 - in the working directory
            file.write(data)
    assert main(["preprocess", "a.png", "b.png", "--base64"]) == 1
    told = capsys.readouterr()
    assert told.out == of_the_seed(picture(60, 60)) + "\n"
    assert "b.png" in told.err


def test_the_command_overwrites_nothing_of_its_own_and_says_what_it_cannot_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    for name in ("a.png", "other/a.png"):
        Path(name).write_bytes(picture(60, 60))
    assert main(["preprocess", "a.png", "other/a.png"]) == 1
    told = capsys.readouterr()
    assert told.out == "a.opsin.jpeg\n"
    assert told.err.startswith("opsin: other/a.png: a.opsin.jpeg has just been written from another")
    for folder in ("none", "a.png"):
        assert main(["preprocess", "a.png", "--output-dir", folder]) == 1
        assert capsys.readouterr().err == f"opsin: --output-dir {folder}: there is no such folder\n"


def test_the_command_leaves_what_it_did_not_write_and_may_run_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.png").write_bytes(picture(60, 60))
    target = Path("a.opsin.jpeg")
    assert [main(["preprocess", "a.png"]) for _ in range(2)] == [0, 0]
    written = target.read_bytes()
    assert capsys.readouterr().out == "a.opsin.jpeg\n" * 2
    smaller = ["preprocess", "a.png", "--max-side", "30"]
    assert main(smaller) == 1
    told = "a.opsin.jpeg: this file is there and holds something else; --overwrite replaces it"
    assert capsys.readouterr() == ("", f"opsin: a.png: {told}\n")
    assert target.read_bytes() == written
    assert main([*smaller, "--overwrite"]) == 0
    assert 0 < len(target.read_bytes()) < len(written)
    target.unlink()
    target.mkdir()
    assert main(["preprocess", "a.png"]) == 1
    assert told in capsys.readouterr().err


def test_the_command_reads_standard_input_and_of_what_has_no_end_no_more_than_it_may(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(picture(60, 60))))
    assert main(["preprocess", "-", "/dev/zero", "--base64"]) == 1
    told = capsys.readouterr()
    assert told.out == of_the_seed(picture(60, 60)) + "\n"
    assert told.err == "opsin: /dev/zero: The picture has more than 10485760 bytes (max_image_bytes).\n"


def test_a_picture_over_the_limits_is_made_smaller_where_the_settings_raise_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = picture(5100, 5000)
    Path("a.png").write_bytes(data)
    words = ["preprocess", "a.png", "--base64", "--max-side", "300"]
    assert main(words) == 1
    assert "in total 25500000; the limit is 25000000" in capsys.readouterr().err
    limits = {"max_image_pixels": 25_500_000, "max_decoded_bytes_per_image": 102_000_000}
    Path("limits.toml").write_text("".join(["[media]\n", *(f"{name} = {value}\n" for name, value in limits.items())]))
    assert main([*words, "--config", "limits.toml"]) == 0
    assert capsys.readouterr().out == of_the_seed(data, max_size=300) + "\n"
    for name, value in limits.items():
        monkeypatch.setenv(f"OPSIN_MEDIA__{name.upper()}", str(value))
    assert main(words) == 0
    monkeypatch.setenv("OPSIN_MEDIA__MAX_IMAGE_BYTES", str(len(data) - 1))
    assert main(words) == 1
    assert f"more than {len(data) - 1} bytes" in capsys.readouterr().err
    assert main([*words, "--config", "none.toml"]) == 1
    assert "none.toml: cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("side", ["0", "-5"])
def test_no_side_is_no_picture(side: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preprocess", "a.png", "--max-side", side]) == 1
    assert f"--max-side) is {side}; it must be at least 1" in capsys.readouterr().err
