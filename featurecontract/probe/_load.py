"""Loading a target with transformers: a model directory, or a GGUF file."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from featurecontract.errors import InputError, UsageError

if TYPE_CHECKING:
    from torch import nn

__all__ = ["LoadedTarget", "dtype_of", "load_target", "require_torch"]

# Before transformers 4.56 the keyword was torch_dtype.
_DTYPE_SINCE = (4, 56)
_MAX_NAMED = 3


@dataclass(frozen=True, slots=True, eq=False)
class LoadedTarget:
    """A model with its tokenizer (None where it has none) and the digest of its ``tokenizer.json``."""

    model: nn.Module
    tokenizer: Any
    name: str
    tokenizer_sha256: str | None = None


def require_torch() -> None:
    """Raise UsageError where torch is not installed."""
    try:
        import_module("torch")
    except ImportError:
        raise UsageError("recording needs torch: pip install 'featurecontract[torch]'") from None


def load_target(
    path: str,
    *,
    gguf: str | None = None,
    dtype: str = "auto",
    device: str | None = None,
    trust_remote_code: bool = False,
) -> LoadedTarget:
    """Load a target from local files; the network is never asked.

    Args:
        path: A transformers model directory.
        gguf: A GGUF file in it, by name or by path; ``path`` may then be the file itself.
        dtype: ``auto`` for the checkpoint's own, or a torch dtype's name.
        device: Where to put it; None for all GPUs where accelerate is installed, else the CPU.
        trust_remote_code: Run the model code in the directory; only for files that you trust.

    Raises:
        InputError: it cannot be loaded, or weights of it are missing.
        UsageError: transformers is not installed.
    """
    directory, file = _place(path, gguf)
    try:
        transformers = import_module("transformers")
    except ImportError:
        raise UsageError("recording from a model directory needs transformers: pip install transformers") from None
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2] if part.isdigit())
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    options["dtype" if version >= _DTYPE_SINCE else "torch_dtype"] = dtype if dtype == "auto" else dtype_of(dtype)
    if file:
        options["gguf_file"] = file
        # The file's own precision cannot be computed in; it is unpacked into float32 unless told otherwise.
        if dtype == "auto":
            options["dtype" if version >= _DTYPE_SINCE else "torch_dtype"] = dtype_of("float32")
    if device is None and _has_gpu():
        options["device_map"] = "auto"
    try:
        loaded = _class(transformers, directory, file, options).from_pretrained(
            str(directory), output_loading_info=True, **options
        )
        model, info = loaded if isinstance(loaded, tuple) else (loaded, {})
        if device is not None:
            model = model.to(device)
    except Exception as error:  # foreign code reads a foreign file: any type of exception comes from here
        raise InputError.single(
            str(directory),
            f"transformers cannot load the target: {type(error).__name__}: {_line(error)}",
            next_step="check the directory; --gguf names a GGUF file, --trust-remote-code runs model code in it",
        ) from error
    _require_weights(directory, file, model, info)
    tokenizer = _tokenizer(transformers, directory, file, trust_remote_code=trust_remote_code)
    return LoadedTarget(model, tokenizer, directory.resolve().name, _digest(directory / "tokenizer.json"))


def _require_weights(directory: Path, file: str | None, model: Any, info: dict[str, Any]) -> None:
    """Refuse a model that is not all there: transformers fills what is missing with random numbers."""
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    if getattr(model.config, "tie_word_embeddings", False):
        tied |= set(getattr(model, "_tied_weights_keys", None) or ())
    missing = sorted(set(info.get("missing_keys") or ()) - tied)
    if not missing:
        return
    shown = ", ".join(missing[:_MAX_NAMED]) + (
        f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
    )
    raise InputError.single(
        str(directory / file) if file else str(directory),
        f"holds no weights for {shown}; transformers would make them up at random",
        next_step="copy the whole target again, every shard of it, with the config.json that belongs to it",
    )


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def _place(path: str, gguf: str | None) -> tuple[Path, str | None]:
    place = Path(path)
    if gguf is None and place.suffix == ".gguf":
        place, gguf = place.parent, place.name
    if gguf is not None and Path(gguf).name != gguf:
        place, gguf = Path(gguf).parent, Path(gguf).name
    if not place.is_dir():
        step = "name a transformers model directory; models are never downloaded"
        raise InputError.single(str(place), "is no directory", next_step=step)
    if gguf is not None and not (place / gguf).is_file():
        raise InputError.single(str(place / gguf), "is no file", next_step="name the GGUF file in the directory")
    return place, gguf


def dtype_of(name: str) -> Any:
    """Return the torch dtype of a name; raises UsageError for anything but a floating-point one."""
    import torch

    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise UsageError(f"--dtype {name!r}: write auto, float32, bfloat16 or float16")
    return found


def _has_gpu() -> bool:
    import torch

    if not torch.cuda.is_available():
        return False
    try:
        import_module("accelerate")
    except ImportError:
        return False
    return True


def _class(transformers: Any, directory: Path, file: str | None, options: dict[str, Any]) -> Any:
    """Return the class that config.json names: a wrapper around a language model is not in the causal auto class."""
    if file is None and not options["trust_remote_code"]:
        config = transformers.AutoConfig.from_pretrained(str(directory), local_files_only=True)
        for name in getattr(config, "architectures", None) or ():
            found = getattr(transformers, name, None)
            if isinstance(found, type) and hasattr(found, "from_pretrained"):
                return found
    return transformers.AutoModelForCausalLM


def _tokenizer(transformers: Any, directory: Path, file: str | None, *, trust_remote_code: bool) -> Any:
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    if file:
        options["gguf_file"] = file
    try:
        return transformers.AutoTokenizer.from_pretrained(str(directory), **options)
    except Exception:  # noqa: BLE001 - a target without a usable tokenizer is recorded on spread ids, and a note says so
        return None


def _digest(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None
