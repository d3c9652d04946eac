"""speculators on the CPU: its own data preparation, command and Trainer, with a hook on what ``fc`` receives.

Its Trainer asks for an accelerator in three places; those are answered with the CPU. Attention and loss have CPU forms
of their own, chosen by its options. ``python speculators_run.py OUT`` leaves OUT/target and OUT/drafter.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tiny_target import LENGTH, make_target, planes, probe_tokens, sequences

from featurecontract.capture import Tap, capturing, tag
from featurecontract.trainers import attach_speculators

#: Layer inputs, as its ``--target-layer-ids`` counts them; the embedding is allowed there.
IDS = (2, 4, 5)


def prepare(target: Path, data: Path, ids: tuple[int, ...] = IDS) -> Path:
    """Write what its vLLM connector writes: every plane asked for and h[L], in the order of the layers."""
    rows = [{"input_ids": item.tolist(), "loss_mask": [1] * len(item)} for item in sequences()]
    source = data.with_suffix(".jsonl")
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run(["prepare-data", "--model", target, "--data", source, "--output", data, "--seq-length", LENGTH])
    states = data / "hidden_states"
    states.mkdir(exist_ok=True)
    for number, tokens in enumerate(prepared(data)):
        found, _ = planes(target, tokens)
        stacked = torch.stack([*(found[b] for b in sorted(ids)), found[-1]], dim=1)
        save_file({"hidden_states": stacked, "token_ids": tokens}, states / f"hs_{number}.safetensors")
    return data


def prepared(data: Path) -> list[torch.Tensor]:
    """Return the token ids in the order in which its dataset numbers them."""
    from datasets import load_from_disk

    return [torch.as_tensor(row["input_ids"]) for row in load_from_disk(str(data))]


def run(words: list[Any]) -> None:
    """Run its own command in this process."""
    from speculators.__main__ import app

    before, sys.argv = sys.argv, ["speculators", *(str(word) for word in words)]
    try:
        app()
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"speculators {words[0]} ended with {end.code}") from end
    finally:
        sys.argv = before


def on_the_cpu(stack: ExitStack) -> None:
    """Answer its questions for an accelerator."""
    from speculators.train import trainer

    def put(owner: Any, name: str, value: Any) -> None:
        before = owner.__dict__[name]
        setattr(owner, name, value)
        stack.callback(setattr, owner, name, before)

    put(trainer, "get_local_rank", lambda: torch.device("cpu"))
    if "device_type" in vars(trainer.Trainer):
        put(trainer.Trainer, "device_type", property(lambda _self: "cpu"))
    else:
        trainer.Trainer.device_type = property(lambda _self: "cpu", lambda _self, _value: None)
        stack.callback(delattr, trainer.Trainer, "device_type")
    put(torch.accelerator, "synchronize", lambda *_args, **_kwargs: None)


def train(
    target: Path, data: Path, out: Path, *options: Any, ids: tuple[int, ...] = IDS, attach: dict[str, Any] | None = None
) -> Path | None:
    """Train one epoch and return the folder of the capture of what ``fc`` received for the probe's sequence."""
    from speculators.models.eagle3.core import Eagle3DraftModel

    kept = []
    first = sequences()[0]

    def forward(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        given = kwargs.get("input_ids", args[1] if len(args) > 1 else None)
        # Its batch has lost the first token and is padded behind; row t of the features belongs to the token before.
        length = len(first) - 1
        if kept or given is None or given.flatten()[:length].tolist() != first[1:].tolist():
            return original(self, *args, **kwargs)
        taps = [Tap.module(self.fc, point="projection_input")]
        if getattr(self, "input_norm", None) is not None:
            taps.append(Tap.module(self.input_norm, point="features"))
        rows = given.numel()
        facts = {
            "token_ids": first[:-1].tolist() + [0] * (rows - length),
            "drafter_token_ids": given.flatten().tolist(),
            "positions": list(range(rows)),
            "accepted": [row < length for row in range(rows)],
        }
        with capturing(*taps, runtime="speculators") as recording, tag(phase="training", **facts):
            result = original(self, *args, **kwargs)
        kept.append(recording)
        return result

    with ExitStack() as stack:
        on_the_cpu(stack)
        own = Eagle3DraftModel.forward
        Eagle3DraftModel.forward = lambda self, *args, **kwargs: forward(own, self, *args, **kwargs)
        stack.callback(setattr, Eagle3DraftModel, "forward", own)
        stack.enter_context(attach_speculators(token_ids=probe_tokens(), **({"strict": True} | (attach or {}))))
        fixed = (
            "train --speculator-type eagle3 --on-missing raise --num-workers 0 --hidden-states-dtype float32 "
            "--epochs 1 --lr 1e-3 --draft-attn-impl eager --loss-implementation eager"
        )
        places = ["--verifier-name-or-path", target, "--data-path", data, "--save-path", out]
        sizes = ["--total-seq-len", LENGTH, "--target-layer-ids", *ids]
        run([*fixed.split(), *places, *sizes, *options])
    if not kept:
        return None
    kept[0].save(out / "captured")
    return out / "captured"


def main(out: Path) -> None:
    """Leave the target and a trained drafter with its contract."""
    import shutil

    target = make_target(out / "target")
    work = out / "work-speculators"
    work.mkdir(parents=True, exist_ok=True)
    data = prepare(target, work / "data")
    train(target, data, work / "run")
    checkpoint = next(path for path in sorted((work / "run").iterdir()) if (path / "model.safetensors").exists())
    shutil.copytree(checkpoint.resolve(), out / "speculators", dirs_exist_ok=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
