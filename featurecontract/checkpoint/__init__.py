"""Checkpoints on disk: config.json, tensor headers and vocabulary maps, with no weights loaded."""

from __future__ import annotations

from featurecontract.checkpoint._checkpoint import Checkpoint, open_checkpoint
from featurecontract.checkpoint._safetensors import TensorFacts
from featurecontract.checkpoint._target import TargetFacts, read_target
from featurecontract.checkpoint._vocab import VocabFacts, check_vocab_map

__all__ = [
    "Checkpoint",
    "TargetFacts",
    "TensorFacts",
    "VocabFacts",
    "check_vocab_map",
    "open_checkpoint",
    "read_target",
]
