"""Serving flags: what a runtime makes of its command line, before it starts."""

from featurecontract.serving._arguments import Arguments, Flag
from featurecontract.serving._check import check_flags, effective
from featurecontract.serving._effective import Effective, Setting
from featurecontract.serving._read import read_arguments
from featurecontract.serving._rules import RUNTIMES
from featurecontract.serving._vllm import forced_runner

__all__ = [
    "RUNTIMES",
    "Arguments",
    "Effective",
    "Flag",
    "Setting",
    "check_flags",
    "effective",
    "forced_runner",
    "read_arguments",
]
