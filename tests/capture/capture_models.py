"""A drafter in miniature, and a module whose functions tests tap by path."""

from __future__ import annotations

import torch
from torch import nn

WIDTH = 6


class Drafter(nn.Module):
    """``fc`` as a drafter has it, with a little work around."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(WIDTH, 2)
        self.norm = nn.LayerNorm(2)

    def forward(self, features):
        return self.norm(self.fc(features * 1.0)) + 1


class Engine:
    """Callables of every kind."""

    def combine(self, hidden_states, scale=1.0):
        return hidden_states * scale

    @staticmethod
    def still(hidden_states):
        return hidden_states + 1

    @classmethod
    def classy(cls, hidden_states):
        return hidden_states + 2


class Heir(Engine):
    """Inherits ``combine``."""


def function(*parts, hidden_states=None):
    return parts[0] if hidden_states is None else hidden_states


def rows(*shape, start=0.0):
    """Return ``[rows, WIDTH]`` rows that all differ."""
    count = shape[0] if shape else 4
    return torch.arange(count * WIDTH, dtype=torch.float32).reshape(count, WIDTH) + start
