"""A seeded mutator over the files and arguments of a run: the same seed gives the same files and command line."""

from __future__ import annotations

import copy
import json
import os
import shutil
import struct
from pathlib import Path
from random import Random

WIDTH, DEPTH, VOCAB, DRAFT_VOCAB = 8, 61, 16, 8
FORMATS = ("text", "json", "junit", "sarif", "github", "markdown", "html")
RUNTIMES = ("sglang==0.5.12", "vllm==0.12.0", "vllm", "tensorrt-llm", "llama.cpp==b6000", "eagle", "transformers")
SERVE_ARGS = (
    "sglang.launch_server --speculative-algorithm EAGLE3 --speculative-num-steps 3 --speculative-eagle-topk 1",
    "--speculative-algorithm EAGLE3 --speculative-num-draft-tokens 16 --speculative-draft-model-path ./drafter",
    'vllm serve m --speculative-config \'{"method": "eagle3", "num_speculative_tokens": 5, "model": "d"}\'',
    "SGLANG_SIMULATE_ACC_LEN=3 sglang --speculative-algorithm=EAGLE",
)
YAML = "speculative_config:\n  decoding_type: Eagle\n  max_draft_len: 3\n  eagle3_layers_to_capture: [2, 30, 58]\n"
CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": WIDTH,
    "num_hidden_layers": 1,
    "vocab_size": VOCAB,
    "draft_vocab_size": DRAFT_VOCAB,
    "rope_theta": 10000.0,
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0},
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 58], "use_aux_hidden_state": True},
    "torch_dtype": "bfloat16",
}
TARGET = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "text_config": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "num_hidden_layers": DEPTH,
        "hidden_size": WIDTH,
        "vocab_size": VOCAB,
    },
}
TENSORS = {
    "fc.weight": ("BF16", [WIDTH, 3 * WIDTH]),
    "d2t": ("I64", [DRAFT_VOCAB]),
    "t2d": ("BOOL", [VOCAB]),
    "midlayer.self_attn.q_proj.weight": ("BF16", [WIDTH, 2 * WIDTH]),
    "lm_head.weight": ("BF16", [DRAFT_VOCAB, WIDTH]),
}
SIZES = {"BF16": 2, "I64": 8, "BOOL": 1}
CONTRACT = {
    "contract_version": "1.0",
    "name": "drafter",
    "method": "eagle3",
    "target": {"num_hidden_layers": DEPTH, "hidden_size": WIDTH, "vocab_size": VOCAB},
    "drafter": {
        "hidden_size": WIDTH,
        "tensors": [{"name": "fc.weight", "dtype": "BF16", "shape": [WIDTH, 3 * WIDTH]}],
    },
    "features": [{"slot": s, "boundary": b, "dim": WIDTH} for s, b in enumerate((0, 3, 31))],
    "projections": [
        {
            "tensor": "fc.weight",
            "role": "fc",
            "slots": [0, 1, 2],
            "in_features": 3 * WIDTH,
            "out_features": WIDTH,
            "pre_norm": "none",
        }
    ],
    "vocab": {"draft_vocab_size": DRAFT_VOCAB, "d2t": "offset"},
    "rope": {"theta": 10000.0, "scaling": {"rope_type": "yarn", "factor": 4.0}},
    "serving": {"runtimes": ["sglang==0.5.12"], "num_steps": 3, "top_k": 1, "num_draft_tokens": 4},
    "provenance": {"ids": [2, 30, 58], "convention": "layer_output"},
}
RED = "\x1b[31mred\x1b[0m\x1b]0;title\x07\r\x7f\x9b1m\u202e\u2028"
EDGES = (
    None,
    True,
    False,
    0,
    -1,
    1,
    61,
    62,
    2**31,
    2**53 + 1,
    2**63,
    2**64,
    10**400,
    -(10**18),
    1.5,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    RED,
    "\ud800",
    "a\0b",
    "../../etc/passwd",
    "/etc/passwd",
    "n" * 100_000,
    "layer_output",
    "LlamaForCausalLM",
    [],
    {},
    [0],
    [-1, 2, 30],
    [30, 2, 58],
    [2, 2, 2],
    [None],
    [[[]]],
    {"a": {"b": []}},
    {RED: RED},
)


def base_files() -> dict[str, bytes]:
    """Return every file of a run that is in order, by relative name."""
    header, data = {}, b""
    for name, (dtype, shape) in TENSORS.items():
        size = SIZES[dtype]
        for side in shape:
            size *= side
        raw = b"\x01" * DRAFT_VOCAB + bytes(VOCAB - DRAFT_VOCAB) if name == "t2d" else bytes(size)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + size]}
        data += raw
    names = sorted(TENSORS)
    rules = Path(__file__).parents[2] / "featurecontract" / "runtimes" / "data" / "eagle.json"
    return {
        "drafter/config.json": dumped(CONFIG),
        "drafter/model.safetensors": tensor_file(dumped(header), data),
        "drafter/feature_contract.json": dumped(CONTRACT),
        "sharded/config.json": dumped(CONFIG),
        "sharded/feature_contract.json": dumped(CONTRACT),
        "sharded/model-00001-of-00002.safetensors": tensor_file(dumped(header), data),
        "sharded/model-00002-of-00002.safetensors": tensor_file(b"{}", b""),
        "sharded/model.safetensors.index.json": dumped(
            {
                "metadata": {"total_size": len(data)},
                "weight_map": dict.fromkeys(names, "model-00001-of-00002.safetensors"),
            }
        ),
        "target/config.json": dumped(TARGET),
        "rules.json": rules.read_bytes(),
        "serve.yaml": YAML.encode(),
        "serve.txt": SERVE_ARGS[0].encode(),
        "other.json": dumped({**CONTRACT, "name": "other"}),
    }


def dumped(value: object) -> bytes:
    return json.dumps(value).encode()


def tensor_file(header: bytes, data: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + data


# --- mutations of one file ----------------------------------------------------------------------------------------


def flip(random: Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 8))):
        if out:
            out[random.randrange(len(out))] = random.randrange(256)
    return bytes(out)


def cut(random: Random, data: bytes) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def insert(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data) + 1)
    piece = random.choice(
        (
            b"\0",
            b"\xff\xfe",
            b"[" * 100_000,
            b"9" * 5000,
            b"NaN",
            b"\xed\xa0\x80",
            b"\x1b[31m",
            b"{}",
            b'"',
            b"\r\n",
            b",",
        )
    )
    return data[:at] + piece + data[at:]


def empty(_random: Random, _data: bytes) -> bytes:
    return b""


def swap_values(random: Random, data: bytes) -> bytes:
    """Change JSON values, keys, types: what is left is still JSON."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return flip(random, data)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        value = change(random, value)
    return dumped(value)


def change(random: Random, value: object) -> object:
    places = list(containers(value))
    if not places:
        return random.choice(EDGES)
    place = random.choice(places)
    key = random.choice(list(place)) if isinstance(place, dict) else random.randrange(len(place))
    action = random.randrange(7)
    if action == 0:
        del place[key]
    elif action == 1 and isinstance(place, dict):
        place[random.choice((RED, "extra", "", "n" * 5000, key + "x", "eagle_config"))] = place.pop(key)
    elif action == 2:
        other = random.choice(places)
        place[key] = copy.deepcopy(random.choice(list(other.values()) if isinstance(other, dict) else other))
    elif action == 3 and isinstance(place[key], list):
        place[key] = many(random, place[key])
    elif action == 4:
        place[key] = nested(random.choice((3, 60, 70, 300)))
    else:
        place[key] = copy.deepcopy(random.choice(EDGES))
    return value


def many(random: Random, items: list) -> list:
    """A list of the same kind, far longer; slots are numbered on so that it stays plausible."""
    count = random.choice((4, 7, 40, 3000))
    out = [copy.deepcopy(items[i % len(items)]) if items else i for i in range(count)]
    for index, item in enumerate(out):
        if isinstance(item, dict) and "slot" in item:
            item["slot"] = index
            item["boundary"] = random.randrange(DEPTH + 1)
        elif isinstance(item, int):
            out[index] = random.randrange(-1, DEPTH + 2)
    return out


def nested(depth: int) -> list:
    out: list = []
    for _ in range(depth):
        out = [out]
    return out


def containers(value: object, depth: int = 0):
    if isinstance(value, (dict, list)) and value and depth < 40:
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from containers(inner, depth + 1)


def double_key(random: Random, data: bytes) -> bytes:
    at = data.find(b"{", random.randrange(max(1, len(data))))
    return data if at < 0 else data[: at + 1] + b'"name": 1, "name": 2, ' + data[at + 1 :]


def header_values(random: Random, data: bytes) -> bytes:
    """Mutate the header of a safetensors file and keep its stated length right."""
    if len(data) < 8:
        return b""
    (size,) = struct.unpack("<Q", data[:8])
    mutate = random.choice((swap_values, swap_values, flip, double_key, insert))
    return tensor_file(mutate(random, data[8 : 8 + size]), data[8 + size :])


def length_lie(random: Random, data: bytes) -> bytes:
    return struct.pack("<Q", random.choice((0, 1, 2**32, 2**63, 2**64 - 1, len(data)))) + data[8:]


def on_disk(random: Random, path: Path) -> None:
    """Put something else in place of a file."""
    path.unlink()
    kind = random.randrange(6)
    if kind == 0:
        path.mkdir()
    elif kind == 1 and hasattr(os, "mkfifo"):
        os.mkfifo(path)
    elif kind == 2:
        path.symlink_to(path.name)
    elif kind == 3:
        path.symlink_to("/dev/zero")
    elif kind == 4:
        path.touch()
        os.truncate(path, random.choice((1 << 20, 1 << 34)))


# --- a whole case -------------------------------------------------------------------------------------------------


def build(seed: int, directory: Path, files: dict[str, bytes]) -> tuple[list[str], str]:
    """Write the files of a case and return its command line and what was done, for the message."""
    random = Random(seed)
    shutil.rmtree(directory, ignore_errors=True)
    for name, data in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    done = [mutate_file(random, directory, files) for _ in range(random.choice((1, 1, 1, 2, 3)))]
    return command(random, seed, directory), "; ".join(done)


def mutate_file(random: Random, directory: Path, files: dict[str, bytes]) -> str:
    name = random.choice([*files, "drafter/config.json", "drafter/feature_contract.json", "drafter/model.safetensors"])
    path = directory / name
    if random.random() < 0.08 or not path.is_file() or path.stat().st_size > 1 << 24:
        if path.is_file() or path.is_symlink():
            on_disk(random, path)
        return f"{name}: replaced on disk"
    mutators = [flip, cut, insert, empty, swap_values, swap_values, swap_values, swap_values, double_key]
    if name.endswith(".safetensors"):
        mutators = [flip, cut, insert, empty, length_lie, header_values, header_values, header_values]
    mutate = random.choice(mutators)
    path.write_bytes(mutate(random, path.read_bytes()))
    return f"{name}: {mutate.__name__}"


def command(random: Random, seed: int, directory: Path) -> list[str]:
    kind = ("check", "predict", "check", "init", "show", "diff", "check")[seed % 7]
    checkpoint = str(directory / random.choice(("drafter", "drafter", "drafter", "sharded")))
    fmt = ["-o", FORMATS[seed // 7 % len(FORMATS)]]
    target = ["--target", text(random, random.choice((str(directory / "target"), f"t:{DEPTH},{WIDTH},KimiK25")), 0.1)]
    if kind == "show":
        return ["show", checkpoint, *random.choice(((), ("-o", "json")))]
    if kind == "diff":
        return ["diff", checkpoint, str(directory / "other.json"), *fmt]
    if kind == "init":
        extra = ["--features", text(random, "0,3,31", 0.3)] if random.random() < 0.5 else []
        named = ["--name", text(random, "d", 0.5)] if random.random() < 0.3 else []
        return ["init", checkpoint, *target, "--force", *extra, *named, *random.choice(((), ("--digests",)))]
    runtimes = random.sample(RUNTIMES, random.randrange(4))
    options = [part for name in runtimes for part in ("--runtime", text(random, name, 0.1))]
    options += ["--rules", str(directory / "rules.json")] if random.random() < 0.4 else []
    if random.random() < 0.7 or kind == "predict":
        options += target
    if kind == "predict":
        return ["predict", checkpoint, *options, *fmt, *random.choice(((), ("--changes",)))]
    if random.random() < 0.6:
        serve = random.choice((*SERVE_ARGS, f"@{directory / 'serve.txt'}", str(directory / "serve.yaml")))
        options += ["--serve-args", text(random, serve, 0.4)]
    return ["check", checkpoint, *options, *fmt, *random.choice(((), ("--digests",), ("--strict",)))]


def text(random: Random, value: str, chance: float) -> str:
    """Sometimes spoil an argument; NUL cannot stand in one."""
    if random.random() >= chance:
        return value
    piece = random.choice(
        (RED, "\udcff", "'", '"', "9" * 5000, "\u0663", "\n", "==", ",", ":", "{" * 200, "=", "--", " ")
    )
    at = random.randrange(len(value) + 1)
    end = at + random.choice((0, 0, 3))
    return value[:at] + piece + value[end:]
