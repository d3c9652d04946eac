"""Writers of every stored format, from planes ``[tokens, H]``: what each trainer's own script leaves on disk."""

from __future__ import annotations

import gzip
import io
import json

import torch
from safetensors.torch import save_file


def speculators(folder, number, ids, planes, last, *, mask=None):  # noqa: ARG001 - its masks lie in another file
    folder = folder / "hidden_states"
    folder.mkdir(exist_ok=True)
    path = folder / f"hs_{number}.safetensors"
    save_file({"hidden_states": torch.stack([*planes, last], dim=1), "token_ids": ids}, path)
    return path


def speculators_list(folder, number, ids, planes, last, *, mask=None):
    content = {"input_ids": ids, "loss_mask": _mask(ids, mask), "hidden_states": [*planes, last]}
    return _saved(folder / f"data_{number}.pt", content)


def specforge(folder, number, ids, planes, last, *, mask=None, gz=False):
    folder = folder / "rows_0-5000"
    folder.mkdir(exist_ok=True)
    content = {
        "input_ids": ids,
        "loss_mask": _mask(ids, mask),
        "aux_hidden_state": torch.cat(planes, dim=1)[None],
        "hidden_state": last[None],
    }
    path = folder / f"data_{number}.ckpt"
    if not gz:
        return _saved(path, content)
    stream = io.BytesIO()
    torch.save(content, stream)
    path = path.with_name(path.name + ".gz")
    path.write_bytes(gzip.compress(stream.getvalue(), compresslevel=1))
    return path


def specforge_gz(folder, number, ids, planes, last, *, mask=None):
    return specforge(folder, number, ids, planes, last, mask=mask, gz=True)


def specforge_dspark(folder, number, ids, planes, last, *, mask=None):
    content = {
        "input_ids": ids,
        "loss_mask": _mask(ids, mask),
        "hidden_states": torch.cat(planes, dim=1)[None],
        "target_last_hidden_states": last[None],
    }
    return _saved(folder / f"data_{number}.ckpt", content)


def specforge_dflash(folder, number, ids, planes, last, *, mask=None):  # noqa: ARG001 - it stores no last plane
    content = {"input_ids": ids, "loss_mask": _mask(ids, mask), "hidden_states": torch.cat(planes, dim=1)[None]}
    return _saved(folder / f"data_{number}.ckpt", content)


def modelopt(folder, number, ids, planes, last, *, mask=None, prenorm=None):
    content = {
        "input_ids": ids,
        "loss_mask": _mask(ids, mask),
        "hidden_states": last,
        "aux_hidden_states": torch.cat(planes, dim=1),
        "conversation_id": f"conversation {number}",
    }
    if prenorm is not None:
        content["hidden_states_prenorm"] = prenorm
    # Conversation ids have no common form.
    return _saved(folder / f"{'abcdefgh'[number % 8]}{number:07x}.pt", content)


def angelslim(folder, number, ids, planes, last, *, mask=None):
    content = {
        "input_ids": ids[None],
        "loss_mask": _mask(ids, mask)[None],
        "hidden_states": torch.cat(planes, dim=1)[None],
        "target_hiddens": last[None],
    }
    return _saved(folder / f"data_{number}.ckpt", content)


def angelslim_dflash(folder, number, ids, planes, last, *, mask=None):  # noqa: ARG001 - it stores no last plane
    content = {
        "input_ids": ids[None],
        "loss_mask": _mask(ids, mask)[None],
        "attention_mask": torch.ones_like(ids)[None],
        "hidden_states": torch.cat(planes, dim=1)[None].bfloat16(),
    }
    return _saved(folder / f"sample_{number}.ckpt", content)


def torchspec(folder, number, ids, planes, last, *, mask=None):  # noqa: ARG001 - it stores no mask
    content = {"input_ids": ids, "hidden_states": torch.cat(planes, dim=1), "last_hidden_states": last}
    path = folder / f"{number}.safetensors"
    save_file(content, path)
    return path


#: name -> (writer, state that the format gives the last plane, whether it stores a last plane)
WRITERS = {
    "speculators": (speculators, "residual", True),
    "speculators-list": (speculators_list, "residual", True),
    "specforge-eagle3": (specforge, "final_norm", True),
    "specforge-dspark": (specforge_dspark, "final_norm", True),
    "specforge-dflash": (specforge_dflash, "unknown", False),
    "modelopt": (modelopt, "final_norm", True),
    "angelslim": (angelslim, "final_norm", True),
    "angelslim-dflash": (angelslim_dflash, "unknown", False),
    "torchspec": (torchspec, "unknown", True),
}


def write_producer_config(folder, ids):
    (folder / "data_config.json").write_text(json.dumps({"version": "2.0", "hidden_states": {"layer_ids": ids}}))


def _mask(ids, mask):
    return torch.ones_like(ids) if mask is None else mask.to(ids.dtype)


def _saved(path, content):
    torch.save(content, path)
    return path
