"""A tiny decoder of random weights, its planes, a probe of it, and what a runtime with noisy weights would feed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from featurecontract.contract import Contract, Drafter, Target, Wiring
from featurecontract.identify.mutators import Planes
from featurecontract.probe import Bank, FinalNorm, ProbeData
from featurecontract.probe import all_planes as planes_of_depth

DEPTH, WIDTH, ROWS, HEADS = 10, 96, 64, 4


@dataclass
class Weights:
    """One decoder: attention and MLP matrices per layer, RMSNorms without weights but the last."""

    embedding: torch.Tensor
    attention: list[tuple[torch.Tensor, torch.Tensor]]
    mlp: list[tuple[torch.Tensor, torch.Tensor]]
    norm: torch.Tensor

    def quantised(self, bits):
        """Round every matrix per row to this many bits."""
        if bits is None:
            return self

        def rounded(matrix):
            scale = matrix.abs().amax(dim=1, keepdim=True) / (2 ** (bits - 1) - 1)
            return (matrix / scale).round() * scale

        pairs = lambda layers: [tuple(rounded(item) for item in pair) for pair in layers]  # noqa: E731
        return Weights(self.embedding, pairs(self.attention), pairs(self.mlp), self.norm)


def weights(seed=0):
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows, columns, gain):
        return torch.randn(rows, columns, generator=generator) * gain / columns**0.5

    return Weights(
        embedding=torch.randn(300, WIDTH, generator=generator),
        attention=[(matrix(WIDTH, WIDTH, 1.0), matrix(WIDTH, WIDTH, 0.7)) for _ in range(DEPTH)],
        mlp=[(matrix(4 * WIDTH, WIDTH, 1.5), matrix(WIDTH, 4 * WIDTH, 1.2)) for _ in range(DEPTH)],
        norm=0.5 + torch.rand(WIDTH, generator=generator),
    )


def rms(values):
    return values / values.square().mean(dim=1, keepdim=True).add(1e-6).sqrt()


def run(model, tokens):
    """Return the planes of a causal run over ``tokens``."""
    hidden = model.embedding[tokens]
    boundary, mid, mlp = [hidden], [], {}
    mask = torch.full((len(tokens), len(tokens)), -torch.inf).triu(1)
    for layer in range(DEPTH):
        score, value = model.attention[layer]
        unit = rms(hidden)
        hidden = hidden + torch.softmax(unit @ score @ unit.T + mask, dim=1) @ unit @ value.T
        mid.append(hidden)
        up, down = model.mlp[layer]
        added = torch.nn.functional.gelu(rms(hidden) @ up.T) @ down.T
        hidden = hidden + added
        mlp[layer + 1] = added
        boundary.append(hidden)
    return Planes(
        boundary=tuple(boundary), mid_block=tuple(mid), mlp_output=mlp, norm=lambda item: rms(item) * model.norm
    )


def tokens(seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(300, (ROWS,), generator=generator)


def probe_of(planes, boundaries, ids, norm):
    """Return the probe and the contract of these boundaries."""
    listed = planes_of_depth(DEPTH)
    full = {"boundary": planes.boundary, "mid_block": planes.mid_block, "mlp_output": planes.mlp_output}
    values = torch.stack([full[item.kind][item.boundary] for item in listed]).bfloat16().float()
    channels = torch.arange(WIDTH)
    slots = [planes.boundary[item] for item in boundaries]
    unit = [torch.nn.functional.normalize(item, dim=1) for item in slots]
    probe = ProbeData(
        token_ids=ids,
        golden=torch.cat(slots, dim=1),
        bank=Bank(listed, values[:, :, channels], channels),
        final_norm=FinalNorm(norm, 1e-6),
        gram=torch.stack([item @ item.T for item in unit]),
    )
    contract = Contract(
        name="tiny",
        method="eagle3",
        target=Target(num_hidden_layers=DEPTH, hidden_size=WIDTH),
        drafter=Drafter(hidden_size=WIDTH),
        features=Wiring.from_boundaries(boundaries, dim=WIDTH).features,
    )
    return probe, contract
