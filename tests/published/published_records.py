"""The record of published drafters: one file each, and the checkpoint that a record describes.

A record holds the config as published (``reconstructed`` lists the keys that were not seen and are filled in), the
target (null where nobody states it; ``assumed`` then says what the tests take), ``truth``: the wirings that the
sources allow, and how that is known (``basis``: recorded, stated, inferred, ambiguous or unknown). A wiring lists
boundaries, ``final_norm``, ``residual`` for h[L] and ``drafter_embedding``; the word ``default`` stands for
h[2], h[L//2], h[L-3], and null for a truth that nothing settles.
"""

from __future__ import annotations

import copy
import json
import struct
from math import prod
from pathlib import Path

HERE = Path(__file__).parent
DRAFTERS = HERE / "drafters"
STORY = HERE / "kimi-k2.5-origin-story.json"
DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
#: Dialects whose checkpoints hold no ``fc``.
WITHOUT_PROJECTION = {"D10": "midlayer.hidden_norm.weight", "D25": "proj.0.weight", "D26": "0.0.linear.weight"}
#: Dialects whose drafters borrow the target's head.
WITHOUT_HEAD = ("D1", "D2", "D17", "D18", "D19", "D20", "D25", "D26")


def read(path: Path) -> dict:
    return json.loads(path.read_text("utf-8"))


def records() -> list[dict]:
    return [read(path) for path in sorted(DRAFTERS.glob("*.json"))]


def target_of(record: dict) -> tuple[int, int]:
    """Return depth and width of the target, as stated or, where nobody states them, as the record assumes."""
    facts = record.get("assumed") or record["target"]
    return facts["num_hidden_layers"], facts["hidden_size"]


def target_option(record: dict) -> str:
    depth, width = target_of(record)
    architecture = record["target"]["architecture"]
    return f"{record['target']['name']}:{depth},{width}" + (f",{architecture}" if architecture else "")


def boundary(item: int | str, depth: int) -> tuple[str, int | None, str]:
    """Return source, boundary and state of one item of a truth."""
    if item == "drafter_embedding":
        return "drafter_embedding", None, "residual"
    if item in ("final_norm", "residual"):
        return "target", depth, item
    return "target", item, "residual"


def truths(record: dict) -> list[tuple]:
    """Return every acceptable wiring as a tuple of (source, boundary, state)."""
    depth, _ = target_of(record)
    stated = [[2, depth // 2, depth - 3]] if record["truth"] == "default" else record["truth"] or []
    return [tuple(boundary(item, depth) for item in wiring) for wiring in stated]


def stated_config(record: dict) -> dict:
    """Return the config without what was reconstructed: only what somebody published."""
    config = copy.deepcopy(record["config"])
    for path in record["reconstructed"]:
        *parents, last = path.split(".")
        place = config
        for part in parents:
            place = place.get(part, {})
        place.pop(last, None)
    return config


def body_value(config: dict, key: str) -> object:
    """Return a value of the drafter's body, nested or flat."""
    for place in (config.get("transformer_layer_config"), config.get("model"), config):
        if isinstance(place, dict) and place.get(key) is not None:
            return place[key]
    return None


def tensor_shapes(record: dict) -> dict[str, list[int]]:
    """Return the shapes that follow from the record: what was published, else one projection as wide as the taps."""
    _, width = target_of(record)
    code = record["dialect"][0]
    hidden = body_value(record["config"], "hidden_size") or width
    shapes = {"layers.0.self_attn.q_proj.weight": [hidden, hidden]}
    if code in WITHOUT_PROJECTION:
        shapes[WITHOUT_PROJECTION[code]] = [hidden, width]
    else:
        known = truths(record)
        shapes["fc.weight"] = [hidden, (len(known[0]) if known else 3) * width]
    if code not in WITHOUT_HEAD:
        shapes["lm_head.weight"] = [
            body_value(record["config"], "draft_vocab_size") or body_value(record["config"], "vocab_size") or 1000,
            hidden,
        ]
    if code == "D7":
        shapes |= {f"fc_norm.{slot}.weight": [width] for slot in range(3)}
    if body_value(record["config"], "norm_before_fc"):
        shapes["input_norm.weight"] = shapes["fc.weight"][1:]
    if code in ("D1", "D2"):
        shapes["fc.bias"] = [hidden]
    return shapes | record["tensors"]


def write_checkpoint(record: dict, directory: Path, *, config: dict | None = None) -> Path:
    """Write config.json and a sparse safetensors file: a true header over a hole, and a map of draft id i to 2 i."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config or record["config"]), "utf-8")
    dtype = DTYPES[body_value(record["config"], "dtype") or body_value(record["config"], "torch_dtype") or "bfloat16"]
    header, end = {}, 0
    for name, shape in tensor_shapes(record).items():
        size = prod(shape) * (4 if dtype == "F32" else 2)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    draft, full = body_value(record["config"], "draft_vocab_size"), body_value(record["config"], "vocab_size")
    offsets = b"" if None in (draft, full) or draft == full else struct.pack(f"<{draft}q", *range(draft))
    if offsets:
        header["d2t"] = {"dtype": "I64", "shape": [draft], "data_offsets": [end, end + len(offsets)]}
        header["t2d"] = {
            "dtype": "BOOL",
            "shape": [full],
            "data_offsets": [end + len(offsets), end + len(offsets) + full],
        }
        offsets += bytes(index % 2 == 0 and index < 2 * draft for index in range(full))
    raw = json.dumps(header).encode()
    with (directory / "model.safetensors").open("wb") as stream:
        stream.write(struct.pack("<Q", len(raw)) + raw)
        stream.truncate(8 + len(raw) + end)
        stream.seek(8 + len(raw) + end)
        stream.write(offsets)
    return directory
