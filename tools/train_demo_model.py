"""Trains the demo model: a small Idefics3 (SmolVLM's architecture) on drawn pictures, on a CPU.

    python tools/train_demo_model.py --out src/opsin/demo/model --work /tmp/demo-training

Seeded and resumable: the state in ``--work`` is written every ``--save-every`` steps, and the same command goes on
from there. Three phases. First the vision tower and connector alone, with supervised heads (shape, colour, count,
position, digits): without it nothing is learned in the first 700 joint steps. Then everything jointly, with several
questions on each picture, because the picture is what costs. The heads stay as an auxiliary loss and are thrown away.
Then the language model alone, on remembered features, and with it conclusions on text without pictures: to copy and to
compare takes many more examples than to see.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import distributed, multiprocessing, nn
from transformers import (
    AutoModelForImageTextToText,
    GenerationConfig,
    Idefics3Config,
    Idefics3Processor,
    PreTrainedTokenizerFast,
)
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from opsin.demo import tasks
from opsin.demo.questions import SYSTEM_PROMPTS
from opsin.demo.scenes import (
    CANVAS,
    COLOURS,
    MAX_COUNT,
    SHAPES,
    Number,
    Objects,
    Receipt,
    Scene,
    draw,
    random_number,
    random_objects,
    random_receipt,
)

TILE = 128
PATCH = 16
SCALE_FACTOR = 2
TOKENS_PER_TILE = (TILE // PATCH // SCALE_FACTOR) ** 2
WIDTH = 128
VOCABULARY = 1536
TOTAL_TILE = 3
"""The lower right one of a receipt's four."""
MAX_GRID = 4
"""Row and column markers in the vocabulary; a later model may cut pages into more tiles than 2x2."""

FAKE, GLOBAL, IMAGE, END = "<fake_token_around_image>", "<global-img>", "<image>", "<end_of_utterance>"
CHAT_TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}:"
    "{% if message['content'] is string %} {{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %} {{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)


def build_processor(seed: int) -> Idefics3Processor:
    """Byte-level BPE with SmolLM's pre-tokenizer (single digits, GPT-2 pattern), trained on the tasks' own text."""
    rng = random.Random(seed)
    corpus: list[str] = []
    for _ in range(12_000):
        conversation = random_conversation(rng)
        for turn in conversation.turns:
            corpus += [" " + turn.question, " " + turn.answer]
    corpus += [f" {text}" for text in SYSTEM_PROMPTS] + ["User: Image 1: Image 2. Assistant: System:"] * 50
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", FAKE, GLOBAL, IMAGE, END]
    special += [f"<row_{row}_col_{col}>" for row in range(1, MAX_GRID + 1) for col in range(1, MAX_GRID + 1)]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        corpus,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token="<|im_start|>",
        eos_token=END,
        pad_token="<|endoftext|>",
        model_max_length=4096,
        clean_up_tokenization_spaces=False,
    )
    image_processor = Idefics3ImageProcessorPil(
        size={"longest_edge": CANVAS},
        max_image_size={"longest_edge": TILE},
        do_image_splitting=True,
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.5, 0.5, 0.5],
    )
    return Idefics3Processor(image_processor, tokenizer, image_seq_len=TOKENS_PER_TILE, chat_template=CHAT_TEMPLATE)


def build_model(tokenizer: PreTrainedTokenizerFast) -> Any:
    """Vision 128x4 (0.8 M parameters), text 128x4 with head_dim 32 (0.9 M), embeddings 0.3 M."""
    config = Idefics3Config(
        vision_config={
            "hidden_size": WIDTH, "intermediate_size": 3 * WIDTH, "num_hidden_layers": 4, "num_attention_heads": 4,
            "image_size": TILE, "patch_size": PATCH,
        },
        text_config={
            "model_type": "llama", "vocab_size": len(tokenizer), "hidden_size": WIDTH, "intermediate_size": 3 * WIDTH,
            "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32,
            "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
            "pad_token_id": tokenizer.pad_token_id, "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
        },
        scale_factor=SCALE_FACTOR,
        image_token_id=tokenizer.convert_tokens_to_ids(IMAGE),
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )  # fmt: skip
    return AutoModelForImageTextToText.from_config(config, attn_implementation="sdpa")


def tiles_of(picture: Image.Image, *, split: bool, exact: bool = True) -> tuple[list[np.ndarray], int, int]:
    """Idefics3's preprocessing up to normalisation: uint8 tiles (128, 128, 3), rows, columns (0, 0 when unsplit).

    ``exact`` False halves a whole canvas by averaging instead of Lanczos: ten times cheaper, and a harmless variation.
    """
    width, height = picture.size
    aspect = width / height
    if width >= height:
        width, height = CANVAS, int(CANVAS / aspect)
        height += height % 2
    else:
        width, height = int(CANVAS * aspect), CANVAS
        width += width % 2
    picture = _resized(picture, width, height)
    quick = not exact and picture.size == (CANVAS, CANVAS)
    whole = np.asarray(picture.reduce(CANVAS // TILE) if quick else _resized(picture, TILE, TILE))
    if not split:
        return [whole], 0, 0
    if width >= height:
        width = math.ceil(width / TILE) * TILE
        height = math.ceil(int(width / aspect) / TILE) * TILE
    else:
        height = math.ceil(height / TILE) * TILE
        width = math.ceil(int(height * aspect) / TILE) * TILE
    picture = _resized(picture, width, height)
    pixels = np.asarray(picture)
    rows, columns = height // TILE, width // TILE
    tiles = [
        pixels[row * TILE : (row + 1) * TILE, column * TILE : (column + 1) * TILE]
        for row in range(rows)
        for column in range(columns)
    ]
    return [*tiles, whole], rows, columns


def _resized(picture: Image.Image, width: int, height: int) -> Image.Image:
    if picture.size == (width, height):
        return picture
    return picture.resize((width, height), Image.Resampling.LANCZOS)


def slot_text(rows: int, columns: int) -> str:
    """What stands for one picture in the prompt."""
    text = ""
    for row in range(1, rows + 1):
        for column in range(1, columns + 1):
            text += f"{FAKE}<row_{row}_col_{column}>" + IMAGE * TOKENS_PER_TILE
        text += "\n"
    prefix = "\n" if rows else ""
    return f"{text}{prefix}{FAKE}{GLOBAL}{IMAGE * TOKENS_PER_TILE}{FAKE}"


def random_conversation(rng: random.Random, kind: str | None = None, pool: Pool | None = None) -> tasks.Conversation:
    """The training mixture; ``kind`` fixes one of its groups; scenes come from ``pool`` or are new."""
    kind = kind or rng.choice(("compact", "compact", "several", "split", "receipt", "split_several"))
    source = pool.source(split=kind.startswith("split")) if pool else tasks.Source()
    receipt = pool.receipt if pool else random_receipt
    match kind:
        case "compact":
            draw_kind = rng.random()
            if draw_kind < 0.03:
                return tasks.text_only(rng)
            if draw_kind < 0.07:
                return tasks.single(rng, receipt(rng), split=False, num_turns=2)
            return tasks.single(rng, source.scene(rng), split=False, num_turns=4)
        case "several":
            return several(rng, split=False, source=source)
        case "concluded":
            task = rng.choice(("which", "changed"))
            count = 2 if task == "changed" else rng.choice((2, 3, 4))
            seen = tasks.several(rng, count, split=False, turn_tasks=(task,))
            return replace(seen, scenes=())  # without pictures: only the conclusion can be learned from it
        case "split":
            return tasks.single(rng, source.scene(rng), split=True, num_turns=4)
        case "receipt":
            return tasks.single(rng, receipt(rng), split=True, num_turns=2)
        case _:
            return several(rng, split=True, source=source)


def several(rng: random.Random, *, split: bool, source: tasks.Source) -> tasks.Conversation:
    """Mostly the two questions that are learned last: what changed, and which image shows something."""
    draw_kind = rng.random()
    if draw_kind < 0.28:
        turn_tasks: tuple[str, ...] | None = ("changed",) if rng.random() < 0.8 else ("changed", "named")
        return tasks.several(rng, 2, split=split, turn_tasks=turn_tasks, source=source)
    count = rng.choice((2, 3, 4, 4))
    turn_tasks = rng.choice((("which",), ("which",), ("which", "named"))) if draw_kind < 0.9 else None
    return tasks.several(rng, count, split=split, turn_tasks=turn_tasks, source=source)


@dataclass(frozen=True, slots=True)
class Pool:
    """A finite world, so that features of a frozen vision tower are computed once and used often."""

    name: str
    scenes: int = 6000
    split_scenes: int = 600
    receipts: int = 600
    changes: int = 2

    def source(self, *, split: bool) -> tasks.Source:
        size = self.split_scenes if split else self.scenes

        def scene(rng: random.Random) -> Objects | Number:
            return tasks.random_scene(random.Random(f"{self.name}/scene/{rng.randrange(size)}"))

        def change(rng: random.Random, before: Objects | Number) -> Objects | Number:
            return tasks.change(random.Random(f"{before.layout_seed}/{rng.randrange(self.changes)}"), before)

        return tasks.Source(scene, change)

    def receipt(self, rng: random.Random) -> Receipt:
        return random_receipt(random.Random(f"{self.name}/receipt/{rng.randrange(self.receipts)}"))


LANGUAGE_GROUPS: tuple[tuple[tuple[str, int], ...], ...] = (
    (("compact", 2),), (("several", 18),), (("receipt", 1), ("split", 1)), (("split_several", 4),),
    (("concluded", 80),),
)  # fmt: skip
"""One process's groups in one step with a frozen vision tower."""
LANGUAGE_BATCH = 18
"""Rows that share their padding."""


def groups_of(step: int) -> tuple[tuple[tuple[str, int], ...], ...]:
    """One process's groups of like length in one step, as (kind, conversations)."""
    groups: list[tuple[tuple[str, int], ...]] = [(("compact", 6),), (("several", 8),), (("receipt", 4), ("split", 1))]
    if step % 3 == 0:
        groups.append((("split_several", 2),))
    return tuple(groups)


@dataclass(frozen=True, slots=True)
class HeadTargets:
    """Class per tile for each head; -100 where the head does not apply."""

    kind: int
    shape: int = -100
    colour: int = -100
    count: int = -100
    cell: int = -100
    tens: int = -100
    ones: int = -100
    total: tuple[int, int, int, int] = (-100, -100, -100, -100)

    def row(self) -> list[int]:
        return [self.kind, self.shape, self.colour, self.count, self.cell, self.tens, self.ones, *self.total]


HEAD_CLASSES = (4, len(SHAPES), len(COLOURS), MAX_COUNT + 1, 9, 11, 10, 10, 10, 10, 10)


def targets_of(scene: Scene, tile: int, num_tiles: int) -> HeadTargets:
    """What can be told from one tile: the last tile is the whole picture, the lower right one holds a total."""
    if isinstance(scene, Receipt):
        if num_tiles == 5 and tile == TOTAL_TILE:
            digits = f"{scene.total_cents:04d}"
            return HeadTargets(kind=2, total=(int(digits[0]), int(digits[1]), int(digits[2]), int(digits[3])))
        return HeadTargets(kind=3 if tile == num_tiles - 1 else -100)
    if tile != num_tiles - 1:
        return HeadTargets(kind=-100)
    colour = tuple(COLOURS).index(scene.colour)
    if isinstance(scene, Number):
        return HeadTargets(kind=1, colour=colour, tens=scene.value // 10 or 10, ones=scene.value % 10)
    return HeadTargets(
        kind=0,
        shape=SHAPES.index(scene.shape),
        colour=colour,
        count=scene.count,
        cell=scene.cell if scene.count == 1 else -100,
    )


class Heads(nn.Module):
    """Attention-pooled classifiers over a tile's visual tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(len(HEAD_CLASSES), WIDTH) * 0.1)
        self.keys = nn.Linear(WIDTH, WIDTH)
        self.classifiers = nn.ModuleList(nn.Linear(WIDTH, classes) for classes in HEAD_CLASSES)

    def forward(self, features: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, list[float]]:
        """features (tiles, tokens, WIDTH), targets (tiles, heads) → mean loss, accuracy per head."""
        weights = torch.softmax(self.queries @ self.keys(features).transpose(1, 2) / WIDTH**0.5, dim=-1)
        pooled = weights @ features
        losses, accuracies = [], []
        for index, classifier in enumerate(self.classifiers):
            wanted = targets[:, index]
            known = wanted >= 0
            if not bool(known.any()):
                accuracies.append(float("nan"))
                continue
            logits = classifier(pooled[known, index])
            losses.append(nn.functional.cross_entropy(logits, wanted[known]))
            accuracies.append((logits.argmax(-1) == wanted[known]).float().mean().item())
        return torch.stack(losses).mean(), accuracies


@dataclass(frozen=True, slots=True)
class Group:
    """A padded group of conversations: tiles (n, 128, 128, 3) uint8, ids and labels (rows, length)."""

    name: str
    tiles: np.ndarray
    targets: np.ndarray
    ids: np.ndarray
    labels: np.ndarray


def photographed(scene: Scene, rng: random.Random) -> Image.Image:
    """The drawn picture, sometimes at another size and shape, as a user's file would be."""
    if isinstance(scene, Receipt) or rng.random() < 0.8:
        return draw(scene)
    width = rng.randint(140, 560)
    return draw(scene, (width, max(64, int(width * rng.uniform(0.75, 1.33)))))


class Encoder:
    """Turns conversations into padded groups of token ids, labels and tiles."""

    def __init__(self, processor: Idefics3Processor) -> None:
        self.tokenizer = processor.tokenizer
        self.template = processor.chat_template
        self.assistant = self.tokenizer.encode("Assistant:", add_special_tokens=False)
        self.end = self.tokenizer.convert_tokens_to_ids(END)

    def pictures(
        self, conversation: tasks.Conversation, rng: random.Random
    ) -> tuple[list[np.ndarray], list[list[int]], list[str]]:
        """Returns tiles, head targets per tile, and the slot text of each picture."""
        tiles: list[np.ndarray] = []
        targets: list[list[int]] = []
        slots: list[str] = []
        for scene in conversation.scenes:
            own, rows, columns = tiles_of(photographed(scene, rng), split=conversation.split, exact=rng.random() < 0.25)
            targets += [targets_of(scene, index, len(own)).row() for index in range(len(own))]
            tiles += own
            slots.append(slot_text(rows, columns))
        return tiles, targets, slots

    def text(self, conversation: tasks.Conversation, slots: list[str]) -> tuple[list[int], list[int]]:
        """Returns ids and labels (-100 outside the answers)."""
        text = self.tokenizer.apply_chat_template(
            conversation.messages(), chat_template=self.template, tokenize=False, add_generation_prompt=True
        )
        pieces = text.split(IMAGE)
        text = pieces[0] + "".join(slot + piece for slot, piece in zip(slots, pieces[1:], strict=True))
        text += f" {conversation.turns[-1].answer}{END}"
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids, self._labels(ids) if conversation.scenes else self._conclusion(ids, conversation.turns[-1])

    def _conclusion(self, ids: list[int], turn: tasks.Turn) -> list[int]:
        """Labels of what can be answered without pictures."""
        answer = turn.conclusion or turn.answer
        length = len(self.tokenizer.encode(f" {answer}{END}", add_special_tokens=False))
        return [-100] * (len(ids) - length) + ids[-length:]

    def padded(self, rows: list[tuple[list[int], list[int]]]) -> tuple[np.ndarray, np.ndarray]:
        """Returns ids and labels, each (rows, longest)."""
        length = max(len(ids) for ids, _ in rows)
        pad = self.tokenizer.pad_token_id
        return (
            np.array([ids + [pad] * (length - len(ids)) for ids, _ in rows]),
            np.array([labels + [-100] * (length - len(labels)) for _, labels in rows]),
        )

    def _labels(self, ids: list[int]) -> list[int]:
        labels = [-100] * len(ids)
        inside = False
        for position, token in enumerate(ids):
            if inside:
                labels[position] = token
            if token == self.end:
                inside = False
            if ids[position - len(self.assistant) + 1 : position + 1] == self.assistant:
                inside = True
        return labels

    def group(self, kinds: tuple[tuple[str, int], ...], rng: random.Random) -> Group:
        tiles: list[np.ndarray] = []
        targets: list[list[int]] = []
        rows: list[tuple[list[int], list[int]]] = []
        for kind, count in kinds:
            for _ in range(count):
                conversation = random_conversation(rng, kind)
                own_tiles, own_targets, slots = self.pictures(conversation, rng)
                tiles += own_tiles
                targets += own_targets
                rows.append(self.text(conversation, slots))
        ids, labels = self.padded(rows)
        return Group(name=kinds[0][0], tiles=np.stack(tiles), targets=np.array(targets), ids=ids, labels=labels)


CONCLUSION_TOKENS = 10


def answer_weights(labels: np.ndarray) -> torch.Tensor:
    """For each labelled token 2 / sqrt(length of its answer), 0 elsewhere; same shape as ``labels``.

    The end of a long answer counts three times: there stands what was concluded from the list before it.
    """
    weights = np.zeros(labels.shape, dtype=np.float32)
    for row, own in zip(weights, labels, strict=True):
        inside = np.flatnonzero(own >= 0)
        for answer in np.split(inside, np.flatnonzero(np.diff(inside) > 1) + 1):
            row[answer] = 2 / max(1, len(answer)) ** 0.5
            if len(answer) > CONCLUSION_TOKENS:
                row[answer[-CONCLUSION_TOKENS:]] *= 3
    return torch.from_numpy(weights)


def vision_batch(rng: random.Random) -> tuple[np.ndarray, np.ndarray]:
    """20 whole pictures and 15 receipt tiles, tiles and head targets."""
    tiles: list[np.ndarray] = []
    targets: list[list[int]] = []
    for _ in range(20):
        scene: Scene = random_objects(rng) if rng.random() < 0.6 else random_number(rng)
        own, _, _ = tiles_of(photographed(scene, rng), split=False, exact=rng.random() < 0.25)
        tiles += own
        targets.append(targets_of(scene, 0, 1).row())
    for index in range(15):
        receipt = random_receipt(rng)
        own, _, _ = tiles_of(draw(receipt), split=True, exact=False)
        tile = TOTAL_TILE if index < 13 else rng.choice((0, 1, 2, 4))
        tiles.append(own[tile])
        targets.append(targets_of(receipt, tile, 5).row())
    return np.stack(tiles), np.array(targets)


class Trainer:
    """The model, its heads and optimiser, with a state file."""

    def __init__(self, args: argparse.Namespace, rank: int = 0) -> None:
        self.args = args
        torch.manual_seed(args.seed)
        self.processor = Idefics3Processor.from_pretrained(args.work / "processor")
        self.encoder = Encoder(self.processor)
        self.model = build_model(self.processor.tokenizer)
        self.heads = Heads()
        self.parameters = [*self.model.parameters(), *self.heads.parameters()]
        decayed = [p for p in self.parameters if p.ndim >= 2]
        plain = [p for p in self.parameters if p.ndim < 2]
        self.optimiser = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}], betas=(0.9, 0.98)
        )
        self.pool = Pool(f"{args.seed}/{rank}")
        self.memory: dict[tuple[Scene, bool], tuple[torch.Tensor, str]] = {}
        self.step = 0
        self.seconds = 0.0
        self.first_step = 0
        if args.start_from is not None:
            self.model.load_state_dict(load_file(args.start_from / "model.safetensors"))
            self.step = self.first_step = args.language_from
        if (args.work / "state.pt").exists():
            state = torch.load(args.work / "state.pt", weights_only=True)
            self.model.load_state_dict(state["model"])
            self.heads.load_state_dict(state["heads"])
            self.optimiser.load_state_dict(state["optimiser"])
            self.step, self.seconds = state["step"], state["seconds"]

    def save(self) -> None:
        state = {
            "model": self.model.state_dict(), "heads": self.heads.state_dict(),
            "optimiser": self.optimiser.state_dict(), "step": self.step, "seconds": self.seconds,
        }  # fmt: skip
        torch.save(state, self.args.work / "state.new")
        (self.args.work / "state.new").rename(self.args.work / "state.pt")

    def export(self, out: Path) -> None:
        """bf16 weights, configuration, tokenizer, processor, chat template."""
        # Cast a copy: training goes on in fp32.
        model = build_model(self.processor.tokenizer)
        model.load_state_dict(self.model.state_dict())
        model.to(torch.bfloat16)
        tokenizer = self.processor.tokenizer
        model.generation_config = GenerationConfig(
            do_sample=False, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
        model.save_pretrained(out)
        self.processor.save_pretrained(out)

    def features(self, group: Group) -> torch.Tensor:
        """Visual tokens of a group's tiles, (n, TOKENS_PER_TILE, WIDTH); no gradient for a tile that no head knows."""
        useful = torch.from_numpy(group.targets[:, 0] >= 0)
        if bool(useful.all()):
            return self.encode(group.tiles)
        features = torch.empty(len(group.tiles), TOKENS_PER_TILE, WIDTH)
        with torch.no_grad():
            features[~useful] = self.encode(group.tiles[~useful.numpy()])
        return features.index_put((useful,), self.encode(group.tiles[useful.numpy()]))

    def encode(self, tiles: np.ndarray) -> torch.Tensor:
        """uint8 tiles (n, 128, 128, 3) → (n, TOKENS_PER_TILE, WIDTH)."""
        pixels = torch.from_numpy(tiles).permute(0, 3, 1, 2).float().div_(127.5).sub_(1.0).contiguous()
        side = TILE // PATCH
        mask = torch.ones(len(tiles), side, side, dtype=torch.bool)
        hidden = self.model.model.vision_model(pixel_values=pixels, patch_attention_mask=mask).last_hidden_state
        return self.model.model.connector(hidden)

    def learning_rate(self) -> float:
        """Warm-up, then cosine to nearly 0 by clock time: a shared machine decides how many steps an hour holds."""
        args = self.args
        if self.step < args.vision_steps:
            return args.lr * min(1.0, (self.step + 1) / 100)
        warm = min(1.0, (self.step - max(args.vision_steps, self.first_step) + 1) / 150)
        progress = min(1.0, self.seconds / (args.minutes * 60))
        return args.lr * warm * (0.004 + 0.996 * 0.5 * (1 + math.cos(math.pi * progress)))

    def vision_step(self, tiles: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        loss, accuracies = self.heads(self.encode(tiles), torch.from_numpy(targets))
        loss.backward()
        return {"loss": loss.item(), "heads": float(np.nanmean(accuracies)), "worst": float(np.nanmin(accuracies))}

    def answer_loss(
        self, features: torch.Tensor, ids: np.ndarray, labels: np.ndarray, total: int
    ) -> tuple[torch.Tensor, float]:
        """Cross-entropy of the answers' tokens divided by ``total``, and their accuracy."""
        tokens = torch.from_numpy(ids)
        embeds = self.model.get_input_embeddings()(tokens)
        is_image = (tokens == self.model.config.image_token_id).unsqueeze(-1)
        embeds = embeds.masked_scatter(is_image, features)
        hidden = self.model.model.text_model(inputs_embeds=embeds).last_hidden_state
        targets = torch.from_numpy(labels)[:, 1:]
        wanted = targets >= 0
        logits = self.model.lm_head(hidden[:, :-1][wanted])
        # By the root of the answer's length: else a list of four pictures drowns "Image 2.".
        weights = answer_weights(labels)[:, 1:][wanted]
        losses = nn.functional.cross_entropy(logits, targets[wanted], reduction="none")
        return (losses * weights).sum() / total, (logits.argmax(-1) == targets[wanted]).float().mean().item()

    def joint_step(self, rng: random.Random) -> dict[str, float]:
        """Everything at once; the heads keep the visual tokens telling."""
        groups = [self.encoder.group(kinds, rng) for kinds in groups_of(self.step)]
        total = sum(int((group.labels >= 0).sum()) for group in groups)
        report = {"loss": 0.0}
        for group in groups:
            features = self.features(group)
            loss, report[f"tokens_{group.name}"] = self.answer_loss(features, group.ids, group.labels, total)
            auxiliary, _ = self.heads(features, torch.from_numpy(group.targets))
            (loss + 0.5 * auxiliary / len(groups)).backward()
            report["loss"] += loss.item()
        auxiliary, accuracies = self.heads(*self.small_print(rng))
        (0.5 * auxiliary).backward()
        report["totals"] = float(np.nanmean(accuracies[-4:]))
        return report

    def language_step(self, rng: random.Random) -> dict[str, float]:
        """The language model alone, on remembered features: three times as many conversations per second."""
        batches = [(kinds[0][0], batch) for kinds in LANGUAGE_GROUPS for batch in self.remembered_group(kinds, rng)]
        total = sum(int((labels >= 0).sum()) for _, (_, _, labels) in batches)
        report = {"loss": 0.0}
        for name, (features, ids, labels) in batches:
            loss, report[f"tokens_{name}"] = self.answer_loss(features, ids, labels, total)
            loss.backward()
            report["loss"] += loss.item()
        return report

    def remembered_group(
        self, kinds: tuple[tuple[str, int], ...], rng: random.Random
    ) -> list[tuple[torch.Tensor, np.ndarray, np.ndarray]]:
        """Features (tiles, TOKENS_PER_TILE, WIDTH), ids, labels of batches of like length."""
        rows: list[tuple[list[torch.Tensor], tuple[list[int], list[int]]]] = []
        for kind, count in kinds:
            for _ in range(count):
                conversation = random_conversation(rng, kind, self.pool)
                known = [self.remembered(scene, split=conversation.split) for scene in conversation.scenes]
                text = self.encoder.text(conversation, [slot for _, slot in known])
                rows.append(([features for features, _ in known], text))
        rows.sort(key=lambda row: len(row[1][0]))
        none = torch.empty(0, TOKENS_PER_TILE, WIDTH)  # a batch may be all text
        return [
            (
                torch.cat([none, *(own for features, _ in batch for own in features)]).float(),
                *self.encoder.padded([text for _, text in batch]),
            )
            for batch in (rows[start : start + LANGUAGE_BATCH] for start in range(0, len(rows), LANGUAGE_BATCH))
        ]

    def remembered(self, scene: Scene, *, split: bool) -> tuple[torch.Tensor, str]:
        """Features (bf16) and slot text of a scene; computed at its first use."""
        if (scene, split) not in self.memory:
            picture = photographed(scene, random.Random(f"{scene.layout_seed}"))
            tiles, rows, columns = tiles_of(picture, split=split, exact=False)
            with torch.no_grad():
                self.memory[scene, split] = self.encode(np.stack(tiles)).bfloat16(), slot_text(rows, columns)
        return self.memory[scene, split]

    def phase(self) -> str:
        """``vision``, ``joint``, ``language`` (vision frozen), then ``joint`` again."""
        if self.step < self.args.vision_steps:
            return "vision"
        return "language" if self.args.language_from <= self.step < self.args.language_until else "joint"

    def small_print(self, rng: random.Random) -> tuple[torch.Tensor, torch.Tensor]:
        """Features and head targets of twelve receipts' totals: small print takes longest to learn."""
        receipts = [random_receipt(rng) for _ in range(12)]
        tiles = np.stack([tiles_of(draw(receipt), split=True, exact=False)[0][TOTAL_TILE] for receipt in receipts])
        targets = np.array([targets_of(receipt, TOTAL_TILE, 5).row() for receipt in receipts])
        return self.encode(tiles), torch.from_numpy(targets)

    def average_gradients(self) -> None:
        """Over all processes, in one message. What is frozen has no gradient in any of them."""
        trained = [p for p in self.parameters if p.requires_grad]
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in trained]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        distributed.all_reduce(flat)
        flat /= self.args.processes
        for parameter, averaged in zip(trained, flat.split([p.numel() for p in trained]), strict=True):
            parameter.grad = averaged.view_as(parameter)

    def optimise(self, rng: random.Random) -> dict[str, float]:
        """One step."""
        phase = self.phase()
        for module in (self.model.model.vision_model, self.model.model.connector, self.heads):
            module.requires_grad_(phase != "language")
        match phase:
            case "vision":
                report = self.vision_step(*vision_batch(rng))
            case "joint":
                report = self.joint_step(rng)
            case _:
                report = self.language_step(rng)
        self.average_gradients()
        for group in self.optimiser.param_groups:
            group["lr"] = self.learning_rate()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.step += 1
        return report

    def run(self, rank: int) -> None:
        """Trains until the time is up; the first process reports, saves and exports."""
        args = self.args
        averages: dict[str, float] = {}
        while self.seconds < args.minutes * 60:
            started = time.monotonic()
            report = self.optimise(random.Random(f"{args.seed}/{self.step}/{rank}"))
            # Every process must see the same clock: it decides on learning rate and end.
            elapsed = torch.tensor(time.monotonic() - started)
            distributed.broadcast(elapsed, src=0)
            self.seconds += elapsed.item()
            for name, value in report.items():
                averages[name] = 0.9 * averages.get(name, value) + 0.1 * value
            if rank == 0 and self.step % 50 == 0:
                figures = {name: round(value, 4) for name, value in averages.items()}
                print(json.dumps({"step": self.step, "minutes": round(self.seconds / 60, 1), **figures}), flush=True)
                averages = {}
            if rank == 0 and self.step % args.save_every == 0:
                self.save()
        if rank == 0:
            self.save()
            self.export(args.out)


def train(rank: int, args: argparse.Namespace) -> None:
    """One of ``--processes`` equal processes; each computes half of a step's pictures on a core of its own."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{args.work.resolve()}/rendezvous", rank=rank, world_size=args.processes
    )
    Trainer(args, rank).run(rank)
    distributed.destroy_process_group()


def main() -> None:
    """Starts or resumes a training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="where the finished model goes")
    parser.add_argument("--work", type=Path, required=True, help="state for resuming")
    parser.add_argument("--start-from", type=Path, help="a finished model's folder, to go on in the language phase")
    parser.add_argument("--minutes", type=float, default=128, help="training time, summed over resumed runs")
    parser.add_argument("--vision-steps", type=int, default=1400)
    parser.add_argument("--language-from", type=int, default=3400, help="from here on vision is frozen")
    parser.add_argument("--language-until", type=int, default=5000, help="from here on everything is trained again")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--save-every", type=int, default=200)
    parser.add_argument("--processes", type=int, default=2, help="one core each")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    (args.work / "rendezvous").unlink(missing_ok=True)
    if not (args.work / "processor").exists():
        ready = Idefics3Processor.from_pretrained(args.start_from) if args.start_from else build_processor(args.seed)
        ready.save_pretrained(args.work / "processor")
    multiprocessing.spawn(train, args=(args,), nprocs=args.processes)


if __name__ == "__main__":
    main()
