"""A target and a drafter's projection as a torch module: what a home-made engine is, small."""

from __future__ import annotations

import torch
from tiny_runs import WIDTH, tokens, weights

import featurecontract
from featurecontract.capture import capturing, tag

#: Where its parts are, for what records it.
PATHS = {"layers": "layers", "norm": "norm", "embedding": "embedding", "head": "lm_head"}


class Layer(torch.nn.Module):
    def __init__(self, attention, mlp):
        super().__init__()
        self.score, self.value = (torch.nn.Parameter(item) for item in attention)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, 4 * WIDTH, bias=False),
            torch.nn.GELU(),
            torch.nn.Linear(4 * WIDTH, WIDTH, bias=False),
        )
        self.mlp[0].weight.data, self.mlp[2].weight.data = mlp

    def forward(self, hidden):
        unit = torch.nn.functional.rms_norm(hidden, (WIDTH,), eps=1e-6)
        mask = torch.full((hidden.shape[1], hidden.shape[1]), -torch.inf).triu(1)
        hidden = hidden + torch.softmax(unit @ self.score @ unit.mT + mask, dim=-1) @ unit @ self.value.mT
        return hidden + self.mlp(torch.nn.functional.rms_norm(hidden, (WIDTH,), eps=1e-6))


class Engine(torch.nn.Module):
    """A target and a drafter's projection; ``fed`` names the boundaries that it concatenates."""

    def __init__(self, fed):
        super().__init__()
        made = weights()
        self.fed = fed
        self.embedding = torch.nn.Embedding.from_pretrained(made.embedding)
        self.layers = torch.nn.ModuleList(Layer(a, m) for a, m in zip(made.attention, made.mlp, strict=True))
        self.norm = torch.nn.RMSNorm(WIDTH, eps=1e-6)
        self.norm.weight.data = made.norm
        self.lm_head = torch.nn.Linear(WIDTH, 300, bias=False)
        self.fc = torch.nn.Linear(len(fed) * WIDTH, WIDTH, bias=False)

    def change(self, rows):
        return rows

    def forward(self, ids):
        hidden = self.embedding(ids)
        states = [hidden]
        for layer in self.layers:
            hidden = layer(hidden)
            states.append(hidden)
        self.fc(self.change(torch.cat([states[b] for b in self.fed], dim=-1)[0]))
        return self.lm_head(self.norm(hidden))


def record_tiny(folder, wiring="0,3,6"):
    """Write the contract and the probe of the tiny target into a folder that is there."""
    featurecontract.record(
        Engine((0, 3, 6)),
        out=folder,
        wiring=wiring,
        token_ids=list(dict.fromkeys(tokens().tolist()))[:56] + tokens().tolist()[:8],
        **PATHS,
    )
    return folder


def capture_tiny(ckpt, out, fed=(0, 3, 6), *, phases=("prefill",), change=None, **keywords):
    """Run the probe through an engine that feeds these boundaries and save what entered its projection."""
    ids = list(featurecontract.load(ckpt).probe.token_ids)
    engine = Engine(fed)
    if change is not None:
        engine.change = change
    with torch.no_grad(), capturing(engine.fc, **keywords) as recording:
        for phase in phases:
            with tag(token_ids=ids, phase=phase):
                engine(torch.tensor([ids]))
    return recording.save(out)
