"""What both parity tests need: random weights that leave no norm or bias idle, and the bound."""

from __future__ import annotations

import torch

#: Of the largest logit, in float32.
BOUND = 1e-4


def randomise(model, seed, *, gain=2.0):
    """Fill every parameter; ``gain`` is how much a matrix enlarges what it is given.

    Each layer and each step enlarges float32's own rounding too: where both are many, a gain of 2 carries the rounding
    of another thread count beyond the bound, whoever's it is.
    """
    g = torch.Generator().manual_seed(seed)
    for name, value in model.named_parameters():
        with torch.no_grad():
            if value.dim() == 2:
                scale = 1.0 if "embed" in name else gain / value.shape[1] ** 0.5
                value.copy_(torch.randn(value.shape, generator=g) * scale)
            else:
                value.copy_((0.0 if name.endswith("bias") else 1.0) + 0.3 * torch.randn(value.shape, generator=g))


def assert_steps_agree(ours, theirs):
    """Compare ``[steps][rows, vocabulary]``; rows whose token lies behind the text are the caller's to agree on."""
    assert len(ours) == len(theirs) > 0
    for number, (mine, other) in enumerate(zip(ours, theirs, strict=True), start=1):
        assert mine.shape == other.shape
        off = float((mine - other).abs().max() / other.abs().max())
        assert off <= BOUND, f"step {number}: differs by {off:.2e} of the largest logit"
        assert float(other.std()) > 0.1
