"""Build the checkpoint of the Kimi-K2.5 story: the published config, and a sparse safetensors file that fits it.

    python examples/kimi_k25/make_checkpoint.py OUT

The file's header follows from the config (``fc.weight [7168, 21504]``); its tensor data is a hole of zeros that takes
no disk space, except ``d2t`` and ``t2d``, which are a real map of 32,000 draft tokens.
"""

from __future__ import annotations

import json
import shutil
import struct
import sys
from array import array
from pathlib import Path

HERE = Path(__file__).parent
WIDTHS = {"BF16": 2, "I64": 8, "BOOL": 1}


def build(out: Path) -> Path:
    """Write config.json and model.safetensors into ``out`` and return it."""
    out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(HERE / "config.json", out / "config.json")
    config = json.loads((HERE / "config.json").read_text("utf-8"))
    width, vocab, draft = config["hidden_size"], config["vocab_size"], config["draft_vocab_size"]
    step = vocab // draft
    offsets = array("q", (index * step - index for index in range(draft)))
    used = bytearray(vocab)
    used[0 : draft * step : step] = b"\x01" * draft
    tensors = {
        "d2t": ("I64", [draft]),
        "embed_tokens.weight": ("BF16", [vocab, width]),
        "fc.weight": ("BF16", [width, 3 * width]),
        "lm_head.weight": ("BF16", [draft, width]),
        "midlayer.hidden_norm.weight": ("BF16", [width]),
        "midlayer.input_layernorm.weight": ("BF16", [width]),
        "norm.weight": ("BF16", [width]),
        "t2d": ("BOOL", [vocab]),
    }
    write_sparse(out / "model.safetensors", tensors, {"d2t": offsets.tobytes(), "t2d": bytes(used)})
    return out


def write_sparse(path: Path, tensors: dict[str, tuple[str, list[int]]], data: dict[str, bytes]) -> None:
    """Write a safetensors file of the given dtypes and shapes; what is not in ``data`` stays a hole."""
    header, position = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = WIDTHS[dtype]
        for extent in shape:
            size *= extent
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        base = stream.tell()
        stream.truncate(base + position)
        for name, values in data.items():
            stream.seek(base + header[name]["data_offsets"][0])
            stream.write(values)


if __name__ == "__main__":
    sys.stdout.write(f"{build(Path(sys.argv[1]))}\n")
