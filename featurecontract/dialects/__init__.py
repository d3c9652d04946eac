"""Dialects: how each trainer or format writes its features in config.json. One file for each."""

from featurecontract.dialects._family import Candidate, Family, Target, spaced_layer_ids
from featurecontract.dialects._recognise import FAMILIES, Recognition, dialect_named, recognise
from featurecontract.dialects._view import ID_KEYS, DraftConfig, IdsAt, lookup
from featurecontract.dialects.specforge import MLA_ARCHITECTURES

__all__ = [
    "FAMILIES",
    "ID_KEYS",
    "MLA_ARCHITECTURES",
    "Candidate",
    "DraftConfig",
    "Family",
    "IdsAt",
    "Recognition",
    "Target",
    "dialect_named",
    "lookup",
    "recognise",
    "spaced_layer_ids",
]
