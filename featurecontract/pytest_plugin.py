"""The pytest plugin: options, their ini twins, the fixture. Unused, it registers and imports nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from featurecontract.contract import Contract
    from featurecontract.plugin._shot import FeatureCapture

__all__ = ["feature_capture", "feature_contract", "pytest_addoption", "pytest_configure"]

_LISTS = (
    ("--feature-contract", "CKPT", "Checkpoint whose feature contract becomes tests; may be repeated."),
    ("--feature-contract-runtime", "NAME[==VERSION]", "Runtime that is predicted, statically; may be repeated."),
    ("--feature-contract-rules", "FILE", "Rules of a fork, in the format of ours; may be repeated."),
    ("--feature-contract-live", "NAME", "Runtime that is started and fed the probe, phase by phase; may be repeated."),
    ("--feature-contract-capture", "PATH", "Capture to verify, a file or a directory of them; may be repeated."),
)
_TEXTS = (
    ("--feature-contract-target", "T", "Target: model directory, config.json, or name:L,H[,ARCHITECTURE]."),
    ("--feature-contract-serve-args", "ARGS", "The server's command line, or a file with it."),
    ("--feature-contract-live-args", "ARGS", "Settings of the engine: KEY=VALUE words, or a JSON file."),
    ("--feature-contract-live-python", "PYTHON", "The interpreter that has the runtime; by default this one."),
    ("--feature-contract-states", "DIR", "Stored hidden states that the drafter is replayed on: a folder or a file."),
    ("--feature-contract-planes", "LIST", "What the stored planes are, in order: boundaries, embedding, final_norm."),
    ("--feature-contract-report", "FILE", "Write the JSON report here; a list of them for several checkpoints."),
    ("--feature-contract-confidence", "X", "Least confidence of what a capture shows, 0.9 by default."),
    ("--feature-contract-fuzz", "N", "Fuzz order, layers and dims of the contract, N examples for each statement."),
)
_SWITCHES = (
    ("--feature-contract-strict", "Count warnings as errors."),
    ("--feature-contract-digests", "Compare the sha256 of the tensors as well; reads their data."),
    ("--feature-contract-follow-links", "Follow links that leave the checkpoint directory."),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add each option and, under the same name with underscores, its ini twin."""
    group = parser.getgroup("featurecontract", "feature contracts of drafters")
    for name, metavar, text in _LISTS:
        group.addoption(name, action="append", metavar=metavar, help=text)
        parser.addini(_twin(name), f"{text} One a line.", type="linelist", default=[])
    for name, metavar, text in _TEXTS:
        group.addoption(name, metavar=metavar, help=text)
        parser.addini(_twin(name), text, type="string", default="")
    for name, text in _SWITCHES:
        group.addoption(name, action="store_true", help=text)
        parser.addini(_twin(name), text, type="bool", default=False)


def _twin(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def pytest_configure(config: pytest.Config) -> None:
    """Start the session's part when a checkpoint is named; an option without one is a usage error."""
    named = config.getoption("feature_contract") or config.getini("feature_contract")
    options = (*_LISTS, *_TEXTS, *_SWITCHES)
    given = [name for name, *_ in options if config.getoption(_twin(name))]
    if named:
        from featurecontract.plugin import start

        start(config)
    elif given:
        raise pytest.UsageError(f"{given[0]} needs a checkpoint to check: --feature-contract CKPT")


@pytest.fixture(scope="session")
def feature_contract(request: pytest.FixtureRequest) -> Contract:
    """Return the contract of the checkpoint given with --feature-contract; one test each when several are given."""
    contracts = request.config.pluginmanager.get_plugin("featurecontract-session")
    if contracts is None:
        pytest.fail("the fixture feature_contract needs a checkpoint: pytest --feature-contract CKPT", pytrace=False)
    contract: Contract = contracts.contract(getattr(request, "param", 0))
    return contract


@pytest.fixture
def feature_capture(request: pytest.FixtureRequest, feature_contract: Contract) -> Iterator[FeatureCapture]:
    """Capture what the test's own engine feeds, and hold it against the contract of ``feature_contract``.

    ``with feature_capture(engine.fc, phase="prefill") as shot: engine.prefill(shot.token_ids)``
    """
    contracts = request.config.pluginmanager.get_plugin("featurecontract-session")
    if contracts is None:
        pytest.fail("the fixture feature_capture needs a checkpoint: pytest --feature-contract CKPT", pytrace=False)
    yield from contracts.feature_capture(request, feature_contract)
