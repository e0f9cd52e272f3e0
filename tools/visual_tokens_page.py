"""The tables of docs/visual-tokens.md, out of the families themselves; run as a script it writes the page.

A test fails while the page holds others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

from opsin.core.conversation import Detail
from opsin.models.facts import Facts, known_checkpoints
from opsin.vision.plan import Count, Family, Size
from opsin.vision.registry import FAMILIES, family_for

PAGE = Path(__file__).parents[1] / "docs" / "visual-tokens.md"
START = "<!-- families: written by tools/visual_tokens_page.py -->\n"
SIZES = (Size(336, 336), Size(512, 512), Size(640, 480), Size(1024, 1024), Size(1920, 1080), Size(4032, 3024))
ORACLE = "Transformers' own image processor and counting functions, over a property-based grid of sizes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One family: what its code cannot say of itself. ``example`` is the checkpoint whose numbers are shown."""

    title: str
    example: str
    model_types: tuple[str, ...]
    rule: str
    low: str
    high: str = "as `auto`"
    checked_against: str = ORACLE


SECTIONS = (
    Section(
        title="SmolVLM, SmolVLM2, Idefics3",
        example="HuggingFaceTB/SmolVLM-256M-Instruct",
        model_types=("idefics3", "smolvlm"),
        rule="scaled, up or down, to the longest edge; cut into square tiles; the whole once more; N tokens each",
        low="not cut: one tile",
        high="cut, whatever the checkpoint's default is",
    ),
    Section(
        title="Qwen2-VL, Qwen2.5-VL",
        example="Qwen/Qwen2.5-VL-7B-Instruct",
        model_types=("qwen2_vl", "qwen2_5_vl"),
        rule="sides rounded to 28 pixels, area between two bounds; one token per 28 x 28; sides up to 200 : 1",
        low="cap of 512 x 512 pixels",
    ),
    Section(
        title="Qwen3-VL, Qwen3.5",
        example="Qwen/Qwen3-VL-8B-Instruct",
        model_types=("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"),
        rule="as Qwen2.5-VL with 32 pixels",
        low="cap of 512 x 512 pixels",
    ),
    Section(
        title="GLM-4.1V, 4.5V, 4.6V",
        example="zai-org/GLM-4.1V-9B-Thinking",
        model_types=("glm4v", "glm4v_moe", "glm46v"),
        rule="as Qwen2.5-VL, the bounds over two frames; sides under 28 pixels are enlarged first",
        low="cap of 512 x 512 pixels",
    ),
    Section(
        title="InternVL2.5, 3, 3.5",
        example="OpenGVLab/InternVL3-8B",
        model_types=("internvl", "internvl_chat"),
        rule="up to 12 tiles of 448 in the grid closest in shape, and an overview of several; 256 tokens each",
        low="one tile",
        high="cut, whatever the checkpoint's default is",
    ),
    Section(
        title="LLaVA-1.5",
        example="llava-hf/llava-1.5-7b-hf",
        model_types=("llava",),
        rule="one view of 336 x 336",
        low="as `auto`",
    ),
    Section(
        title="LLaVA-NeXT-Interleave",
        example="llava-hf/llava-interleave-qwen-7b-hf",
        model_types=("llava",),
        rule="LLaVA-1.5's rule with a view of 384 x 384; several pictures are as many views",
        low="as `auto`",
    ),
    Section(
        title="LLaVA-NeXT (1.6)",
        example="llava-hf/llava-v1.6-mistral-7b-hf",
        model_types=("llava_next",),
        rule="the canvas of a list that keeps most pixels, less its padding; a newline feature per row; an overview",
        low="only the smallest canvases",
    ),
    Section(
        title="LLaVA-OneVision",
        example="llava-hf/llava-onevision-qwen2-7b-ov-hf",
        model_types=("llava_onevision",),
        rule="as LLaVA-NeXT with canvases of up to 6 x 6 views, shrunk to nine views' features; several pictures in "
        "one request are one view and one newline each",
        low="one view and one newline",
    ),
    Section(
        title="Llama 3.2 Vision",
        example="meta-llama/Llama-3.2-11B-Vision-Instruct",
        model_types=("mllama",),
        rule="up to four tiles of 560, on the canvas that enlarges least; 1601 cross-attention tokens each, none of "
        "them in the prompt",
        low="one tile",
    ),
    Section(
        title="Llama 4",
        example="meta-llama/Llama-4-Scout-17B-16E-Instruct",
        model_types=("llama4",),
        rule="up to 16 tiles of 336, on the canvas that enlarges least, and an overview if there are several; 144 "
        "tokens each, separators between them",
        low="one tile",
        checked_against="Transformers' own choice of a canvas (32-bit floats) and prompt, over a property-based grid "
        "of sizes; its pixels need torchvision and are not run",
    ),
    Section(
        title="Pixtral",
        example="mistral-community/pixtral-12b",
        model_types=("llava",),
        rule="shrunk into 1024 x 1024; one token per 16 x 16, rounded up; a marker behind every row",
        low="shrunk into 512 x 512",
    ),
    Section(
        title="Mistral Small 3.x",
        example="mistralai/Mistral-Small-3.1-24B-Instruct-2503",
        model_types=("mistral3",),
        rule="as Pixtral with 1540 x 1540 and 28 x 28",
        low="shrunk into 512 x 512",
    ),
    Section(
        title="Gemma 3",
        example="google/gemma-3-12b-it",
        model_types=("gemma3",),
        rule="one view of 896 x 896; with pan and scan, 2 to 4 pieces of a picture longer than 1.2 : 1 as well",
        low="without pan and scan",
        high="with pan and scan",
    ),
    Section(
        title="Gemma 4",
        example="google/gemma-4-31B-it",
        model_types=("gemma4", "gemma4_unified"),
        rule="scaled, up or down, to a budget of 70, 140, 280, 560 or 1120 tokens of 48 x 48",
        low="budget of 70",
        high="budget of 1120",
    ),
    Section(
        title="MiniCPM-V 4.6, 4.7",
        example="openbmb/MiniCPM-V-4.6",
        model_types=("minicpmv4_6", "minicpmv4_7"),
        rule="up to nine slices of about 448 x 448 closest in shape, and an overview; one token per 56 x 56",
        low="the overview alone",
    ),
    Section(
        title="MiniCPM-V 2.6, 4, 4.5",
        example="openbmb/MiniCPM-V-2_6",
        model_types=("minicpmv",),
        rule="as 4.6, with 64 tokens for every slice and the overview",
        low="the overview alone",
        checked_against="the grid of MiniCPM-V 4.6 in Transformers, which is the same; golden values from vLLM's code",
    ),
    Section(
        title="DeepSeek-VL2",
        example="deepseek-ai/deepseek-vl2-small",
        model_types=("deepseek_vl_v2",),
        rule="LLaVA-NeXT's choice among canvases of up to nine tiles of 384, 14 x 14 tokens each, a newline per row, a "
        "separator, an overview; three pictures or more in one request are not cut",
        low="not cut",
        checked_against="the choice of a canvas in Transformers, which is the same; golden values from vLLM's code",
    ),
    Section(
        title="Molmo",
        example="allenai/Molmo-7B-D-0924",
        model_types=("molmo",),
        rule="up to twelve overlapping crops of 336 and an overview, pooled 2 x 2, a marker behind every row",
        low="one crop",
        checked_against="the grid of Molmo 2 in Transformers, which is the same; golden values from vLLM's code",
    ),
    Section(
        title="Kimi-VL",
        example="moonshotai/Kimi-VL-A3B-Instruct",
        model_types=("kimi_vl",),
        rule="shrunk to 4096 whole patches of 14; one token per 28 x 28, rounded up",
        low="cap of 512 x 512 pixels",
        checked_against="golden values from vLLM's code",
    ),
    Section(
        title="Chameleon",
        example="facebook/chameleon-7b",
        model_types=("chameleon",),
        rule="1024 discrete tokens, whatever the size",
        low="as `auto`",
    ),
)


def tables() -> str:
    """All sections, in order."""
    missing = set(FAMILIES) - {model_type for section in SECTIONS for model_type in section.model_types}
    assert not missing, f"no section for {missing}"
    return "\n".join(_section(section) for section in SECTIONS)


def written(page: str) -> str:
    """The page with its tables replaced."""
    return page[: page.index(START) + len(START)] + "\n" + tables()


def _section(section: Section) -> str:
    facts = known_checkpoints()[section.example]
    family = family_for(facts.vision)
    rows = "".join(f"| {name} | {value} |\n" for name, value in _rows(section, facts, family))
    return f"### {section.title}\n\n| | |\n|---|---|\n{rows}\n{_golden(family)}"


def _rows(section: Section, facts: Facts, family: Family) -> Iterator[tuple[str, str]]:
    yield "rule", section.rule
    yield "`low`", section.low
    yield "`high`, `original`", section.high
    yield "model types", ", ".join(f"`{model_type}`" for model_type in section.model_types)
    yield "parameters", f"{', '.join(_parameters(family))} (`{section.example}`)"
    yield "their source", facts.vision_source
    yield "parameters verified", "yes" if facts.vision_verified else "**no**"
    yield "rule checked against", section.checked_against


def _parameters(family: Family) -> Iterator[str]:
    assert is_dataclass(family)
    for field in fields(family):
        value = getattr(family, field.name)
        if isinstance(value, int | float | bool):
            yield f"`{field.name}` {value}"
        elif field.name == "canvases":
            yield f"{len(value)} `canvases`"


def _golden(family: Family) -> str:
    header = f"| {_name_of_cost(family)} | {' | '.join(f'{size.width} x {size.height}' for size in SIZES)} |\n"
    shown = {"`auto`": Detail.AUTO, "`low`": Detail.LOW, "`high`, `original`": Detail.HIGH}
    rows = (_row(name, [family.count(size, detail) for size in SIZES]) for name, detail in shown.items())
    return header + "|---" * (len(SIZES) + 1) + "|\n" + "".join(rows)


def _name_of_cost(family: Family) -> str:
    return "cross-attention tokens + markers" if _is_beside(family.count(SIZES[0])) else "image tokens + markers"


def _row(name: str, counts: Sequence[Count]) -> str:
    cells = (f"{count.image_tokens or count.cross_attention_tokens} + {count.marker_tokens}" for count in counts)
    return f"| {name} | {' | '.join(cells)} |\n"


def _is_beside(count: Count) -> bool:
    return count.cross_attention_tokens > 0


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
