"""The model itself, through Transformers: the only file of the engine's step that touches torch.

Encoder seam: ``get_image_features`` gives features per tile, forward takes them back as ``mm_encoder_outputs``. Each
sequence has its own ``DynamicCache``; positions are always explicit. Knows no queue and no socket.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from transformers import AutoConfig, AutoModelForImageTextToText, DynamicCache
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils import logging as transformers_logging

from opsin.core.errors import ConfigError
from opsin.engine.local.config import LocalEngineConfig
from opsin.engine.local.feature_cache import Features
from opsin.engine.local.messages import PictureData, Tiles
from opsin.engine.local.runner_api import Encoded, LoadedModel, OutOfMemory
from opsin.engine.local.sampler import Sampler
from opsin.engine.local.sequence import Sequence

logger = logging.getLogger(__name__)

Channels = tuple[float, float, float]


class _Output(Protocol):
    logits: torch.Tensor
    pooler_output: list[torch.Tensor]


class _Model(Protocol):
    """What we use of a Transformers model, typed; the library's own signatures are partly unknown."""

    model: _Model

    def __call__(self, **inputs: object) -> _Output: ...

    def get_image_features(self, *, pixel_values: torch.Tensor) -> _Output: ...


@dataclass(frozen=True, slots=True)
class _Running:
    """What one sequence holds on the device."""

    kv_cache: DynamicCache
    sampler: Sampler


class TransformersRunner:
    """Idefics3 and SmolVLM on one device."""

    def __init__(self, config: LocalEngineConfig) -> None:
        self._config = config
        self._running: dict[str, _Running] = {}

    def load(self, progress: Callable[[str], None]) -> LoadedModel:
        """See Runner."""
        if self._config.num_threads is not None:
            torch.set_num_threads(self._config.num_threads)
        transformers_logging.disable_progress_bar()
        progress("choosing the device")
        self._device = torch.device(choose_device(self._config.device))
        self._limit_memory()
        checkpoint = self._load_config()
        self._dtype = choose_dtype(self._config.dtype, self._device.type, _dtype_of(checkpoint))
        progress("loading the weights")
        self._model = self._load_model(is_quantized=_is_quantized(checkpoint))
        return LoadedModel(device=self._device.type, dtype=str(self._dtype).removeprefix("torch."))

    @torch.inference_mode()
    def encode(self, pictures: Seq[PictureData]) -> list[Encoded]:
        """See Runner. All tiles of all pictures run as one batch row; time is shared out by tile."""
        with _translated():
            started = time.monotonic()
            tiles = [_tiles_of(picture) for picture in pictures]
            features = self._encode_tiles(tiles)
            self._wait()
            seconds = time.monotonic() - started
        num_tiles = sum(one.num_tiles for one in tiles)
        seconds_per_tile, features_per_tile = seconds / num_tiles, len(features) // num_tiles
        pieces = torch.split(features, [features_per_tile * one.num_tiles for one in tiles])
        return [
            # Cloned: a slice would keep the whole batch alive behind the cache's back.
            Encoded(Features(piece.clone(), piece.nbytes, len(piece)), one.num_tiles, seconds_per_tile * one.num_tiles)
            for piece, one in zip(pieces, tiles, strict=True)
        ]

    @torch.inference_mode()
    def prefill(self, sequence: Sequence) -> int:
        """See Runner."""
        with _translated():
            sampler = Sampler(sequence.sampling, sequence.prompt_ids, self._config.eos_token_ids, self._device)
            # Without a config, so that a model with sliding layers keeps every position too.
            running = _Running(DynamicCache(), sampler)
            logits = self._forward(running.kv_cache, sequence.prompt_ids, 0, _encoder_outputs(sequence))
            token = running.sampler.sample(logits, sequence.output_ids)
            self._wait()
        self._running[sequence.id] = running
        return token

    @torch.inference_mode()
    def decode(self, sequences: Seq[Sequence]) -> list[int]:
        """See Runner. One forward per sequence; batching them is a later runner's work."""
        with _translated():
            tokens = [self._decode_one(sequence) for sequence in sequences]
            self._wait()
        return tokens

    def release(self, sequence: Sequence) -> None:
        """See Runner."""
        self._running.pop(sequence.id, None)

    def memory_bytes(self) -> int | None:
        """See Runner."""
        if self._device.type == "cuda":
            return torch.cuda.memory_allocated(self._device)
        return torch.mps.current_allocated_memory() if self._device.type == "mps" else None

    def _encode_tiles(self, tiles: Seq[Tiles]) -> torch.Tensor:
        """Features (image tokens of all tiles, hidden size)."""
        mean, std = self._config.image_mean, self._config.image_std
        pixels = torch.cat([pixel_values(one, mean, std, self._device) for one in tiles]).to(self._dtype)
        # Transformers drops a tile that is 0.0 everywhere as padding, in silence, which would shift the features of all
        # tiles behind it. uint8 reaches 0.0 only where a mean is a multiple of 1/255; one tiny value keeps the tile.
        pixels[(pixels == 0).flatten(1).all(dim=1), 0, 0, 0] = torch.finfo(self._dtype).tiny
        return self._model.model.get_image_features(pixel_values=pixels[None]).pooler_output[0]

    def _decode_one(self, sequence: Sequence) -> int:
        running = self._running[sequence.id]
        logits = self._forward(running.kv_cache, sequence.output_ids[-1:], sequence.position, None)
        return running.sampler.sample(logits, sequence.output_ids)

    def _forward(
        self,
        kv_cache: DynamicCache,
        ids: Seq[int],
        position: int,
        encoder_outputs: dict[str, BaseModelOutputWithPooling] | None,
    ) -> torch.Tensor:
        """Logits (vocabulary,) of the last of ``ids``, whose first stands at ``position``."""
        output = self._model(
            input_ids=torch.tensor([ids], dtype=torch.long, device=self._device),
            position_ids=torch.arange(position, position + len(ids), device=self._device)[None],
            cache=kv_cache,
            mm_encoder_outputs=encoder_outputs,
            logits_to_keep=1,
        )
        return output.logits[0, -1]

    def _wait(self) -> None:
        """Until the device is done: kernels run behind Python's back, and the clock would read too early."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        elif self._device.type == "mps":
            torch.mps.synchronize()

    def _limit_memory(self) -> None:
        share = self._config.gpu_memory_utilization
        if share is None:
            return
        if self._device.type == "cuda":
            torch.cuda.set_per_process_memory_fraction(share)
        else:
            logger.warning("gpu_memory_utilization has no effect on %s", self._device.type)

    def _load_config(self) -> Any:
        with _load_errors():
            return cast(
                "Any",  # partly unknown type of the library
                AutoConfig.from_pretrained(
                    self._config.model_path,
                    local_files_only=True,
                    trust_remote_code=self._config.trust_remote_code,
                ),
            )

    def _load_model(self, *, is_quantized: bool) -> _Model:
        # Quantized weights cannot all be moved once they are loaded, so they are loaded to where they belong.
        placed = {"device_map": {"": str(self._device)}} if is_quantized and self._device.type != "cpu" else {}
        with _load_errors():
            model, report = cast(
                "Any",  # partly unknown type of the library
                AutoModelForImageTextToText.from_pretrained(
                    self._config.model_path,
                    dtype=self._dtype,
                    attn_implementation=self._config.attn_implementation,
                    local_files_only=True,
                    trust_remote_code=self._config.trust_remote_code,
                    output_loading_info=True,
                    **placed,
                ),
            )
            model = (model if is_quantized else model.to(self._device)).eval()
        missing = sorted(report["missing_keys"])
        if missing:  # the library would fill them at random and go on
            raise ConfigError(f"the checkpoint lacks weights of its model: {len(missing)} of them, first {missing[0]}")
        return cast("_Model", model)


def choose_device(wanted: str) -> str:
    """``auto`` is CUDA, then MPS, then CPU. Raises ConfigError for a device that is not there."""
    available = ["cpu"]
    if torch.backends.mps.is_available():
        available.insert(0, "mps")
    if torch.cuda.is_available():
        available.insert(0, "cuda")
    if wanted == "auto":
        return available[0]
    if wanted not in available:
        raise ConfigError(f"device {wanted!r} was asked for; this machine has {', '.join(available)}")
    return wanted


def choose_dtype(wanted: str, device: str, checkpoint: torch.dtype) -> torch.dtype:
    """``auto`` is the checkpoint's own, except where the device is slow or wrong with it."""
    if wanted != "auto":
        return cast("torch.dtype", getattr(torch, wanted))
    if device == "cpu" and (checkpoint is torch.float16 or not _cpu_multiplies_bfloat16()):
        return torch.float32  # else every product is converted: measured ten times slower on an AVX2 machine
    if device == "cuda" and checkpoint is torch.bfloat16 and not torch.cuda.is_bf16_supported():
        return torch.float16
    return checkpoint


def pixel_values(tiles: Tiles, mean: Channels, std: Channels, device: torch.device) -> torch.Tensor:
    """uint8 tiles to (num_tiles, 3, height, width) float32: (x / 255 - mean) / std, per channel.

    Bit-equal to Transformers' PIL image processors, which rescale in float64 and round to float32.
    """
    # bytearray: torch wants memory it may write to.
    flat = torch.frombuffer(bytearray(tiles.pixels), dtype=torch.uint8)
    pixels = flat.view(tiles.num_tiles, tiles.height, tiles.width, 3).to(device).permute(0, 3, 1, 2)
    per_channel = torch.tensor((mean, std), device=device).view(2, 3, 1, 1)
    return (pixels.float() / 255 - per_channel[0]) / per_channel[1]


def _cpu_multiplies_bfloat16() -> bool:
    """Whether matrix products in bfloat16 have instructions or fast conversions of their own."""
    return torch.backends.cpu.get_cpu_capability() not in ("DEFAULT", "AVX2")


def _dtype_of(checkpoint: Any) -> torch.dtype:
    dtype: object = checkpoint.dtype
    return dtype if isinstance(dtype, torch.dtype) else torch.float32


def _is_quantized(checkpoint: Any) -> bool:
    parts = (checkpoint, getattr(checkpoint, "text_config", None))
    return any(getattr(part, "quantization_config", None) is not None for part in parts)


def _tiles_of(picture: PictureData) -> Tiles:
    assert picture.tiles is not None, "the core encodes only pictures with pixels"
    return picture.tiles


def _encoder_outputs(sequence: Sequence) -> dict[str, BaseModelOutputWithPooling] | None:
    if not sequence.features:
        return None
    pooled = [cast("torch.Tensor", features.value) for features in sequence.features]
    # The library declares one tensor and takes a list of them, one per picture.
    return {"image": BaseModelOutputWithPooling(pooler_output=cast("Any", pooled))}


@contextmanager
def _translated() -> Generator[None]:
    """The adapter of torch's out-of-memory errors: a class on CUDA, a sentence on CPU and MPS."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfMemory from error
    except RuntimeError as error:
        text = str(error).lower()
        if "out of memory" in text or "not enough memory" in text or "can't allocate memory" in text:
            raise OutOfMemory from error
        raise


@contextmanager
def _load_errors() -> Generator[None]:
    """The adapter of what loading can raise: a bad folder is the operator's to repair, not a crash."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        logger.exception("loading failed: %s", error)
        raise ConfigError("the model does not fit into the memory of the device") from error
    except Exception as error:
        logger.exception("loading failed: %s", error)
        raise ConfigError(
            f"the model folder cannot be loaded ({type(error).__name__}); the engine's log has the details"
        ) from error
