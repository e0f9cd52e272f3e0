"""Writes the demo checkpoint as GGUF, with llama.cpp's own converter from its source tree: a program that fixtures run.

    python demo_gguf.py LLAMA_CPP MODEL OUT    →  OUT/demo.gguf, OUT/mmproj.gguf

The weights are the checkpoint's, as float32. What the converter cannot find out is told here: which class converts the
text model, since our configuration names none; and whose pre-tokenizer it is, which it knows by a hash that depends on
the vocabulary. One thing differs: llama.cpp puts the token "\\n\\n" before the overview, and with a vocabulary that has
none every prompt with a picture is an invalid batch. The unused ``<|im_end|>`` becomes that token, embedded as "\\n".
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file  # pyright: ignore[reportUnknownVariableType]

ARCHITECTURE = "OpsinDemoForCausalLM"
EMBEDDING = "model.text_model.embed_tokens.weight"
UNUSED, NEWLINE, TWO_NEWLINES = "<|im_end|>", "Ċ", "ĊĊ"  # the newlines as byte-level BPE spells them


def prepare(checkpoint: Path) -> None:
    """Changes a copy of the checkpoint: names the text model's class, and embeds the token that becomes "\\n\\n"."""
    config = json.loads((checkpoint / "config.json").read_text())
    config["text_config"]["architectures"] = [ARCHITECTURE]
    (checkpoint / "config.json").write_text(json.dumps(config))
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text())
    (unused,) = (token["id"] for token in tokenizer["added_tokens"] if token["content"] == UNUSED)
    weights = load_file(checkpoint / "model.safetensors")
    weights[EMBEDDING][unused] = weights[EMBEDDING][tokenizer["model"]["vocab"][NEWLINE]]
    save_file(weights, checkpoint / "model.safetensors", metadata={"format": "pt"})


def register() -> None:
    """Adds the demo's text model to the converter's registry."""
    conversion, base = import_module("conversion"), import_module("conversion.base")
    llama: Any = import_module("conversion.llama")
    normal = import_module("gguf").TokenType.NORMAL

    @base.ModelBase.register(ARCHITECTURE)
    class DemoModel(llama.LlamaModel):  # pyright: ignore[reportUnusedClass] - the registry uses it
        model_arch = llama.LlamaModel.model_arch

        def set_vocab(self) -> None:
            self._set_vocab_gpt2()

        def get_vocab_base_pre(self, tokenizer: object) -> str:
            return "smollm"

        def get_vocab_base(self) -> tuple[list[str], list[int], str]:
            vocabulary: tuple[list[str], list[int], str] = llama.LlamaModel.get_vocab_base(self)
            tokens, types, pre = vocabulary
            unused = tokens.index(UNUSED)
            tokens[unused], types[unused] = TWO_NEWLINES, normal
            return tokens, types, pre

    conversion.TEXT_MODEL_MAP[ARCHITECTURE] = "llama"


def main() -> None:
    """Converts twice: the text model, then the vision tower with its connector."""
    llama_cpp, model, out = map(Path, sys.argv[1:])
    sys.path[:0] = [str(llama_cpp), str(llama_cpp / "gguf-py")]
    converter = import_module("convert_hf_to_gguf")
    register()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "demo"
        shutil.copytree(model, checkpoint)
        prepare(checkpoint)
        for name, flags in (("demo", ()), ("mmproj", ("--mmproj",))):
            sys.argv[1:] = [str(checkpoint), "--outtype", "f32", "--outfile", str(out / f"{name}.gguf"), *flags]
            converter.main()


if __name__ == "__main__":
    main()
