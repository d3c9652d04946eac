"""``--feature-contract-live NAME``: items for every phase; what cannot be started is an error of each, on one line."""

from __future__ import annotations

import importlib.util
import json

import pytest

pytest.importorskip("torch")

from featurecontract.live import phases

without_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here; tests/real/vllm starts it"
)


@pytest.fixture
def target(tiny):
    """A directory that says what a target is; its weights are only needed when an engine starts."""
    facts = json.loads((tiny / "ckpt" / "feature_contract.json").read_text())["target"]
    place = tiny / "target"
    place.mkdir()
    config = {"num_hidden_layers": facts["num_hidden_layers"], "hidden_size": facts["hidden_size"]}
    (place / "config.json").write_text(json.dumps(config))
    return place


def run(pytester, *more):
    return pytester.runpytest("--feature-contract=ckpt", *more)


def test_the_items_are_known_without_starting_anything(pytester, target):
    result = run(pytester, "--feature-contract-live=vllm", "--feature-contract-target=target", "--collect-only", "-q")
    found = [line.partition("::")[2] for line in result.outlines if "::live-" in line]
    wanted = [
        f"live-vllm-{phase}::{name}" for phase in phases("vllm") for name in ("slot-0", "slot-1", "slot-2", "rows")
    ]
    assert found == wanted
    assert target.is_dir()


@without_vllm
def test_a_runtime_that_is_not_installed_is_an_error_of_each_item(pytester, target, outcomes):
    result = run(
        pytester,
        "--feature-contract-live=vllm",
        "--feature-contract-target=target",
        "--feature-contract-report=r.json",
        "-v",
    )
    found = {name: word for name, word in outcomes(result).items() if name.startswith("live-")}
    assert set(found.values()) == {"ERROR"}
    assert len(found) == 4 * len(phases("vllm"))
    text = result.stdout.str()
    assert "No module named 'vllm'; install vllm for" in text
    assert "Traceback" not in text
    assert result.ret == 1
    report = json.loads((target.parent / "r.json").read_text())
    assert (report["verdict"], report["exit_status"]) == ("could-not-check", 2)
    said = [item for item in report["findings"] if item["slug"] == "nothing-captured"]
    assert {item["runtime"] for item in said} == {f"vllm {phase}" for phase in phases("vllm")}
    # No runtime was named either, so nothing at all was compared.
    assert {item["slug"] for item in report["findings"]} == {"nothing-captured", "nothing-compared"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--feature-contract-live=llama.cpp"], "'llama.cpp' cannot be started here (live runtimes: vllm"),
        (["--feature-contract-live=vllm"], "needs the target's directory, with its weights"),
        (["--feature-contract-live-args=dtype"], "'dtype' is no KEY=VALUE"),
        (["--feature-contract-live-args=@none.json"], "none.json"),
        (["--feature-contract-live-python=no-such-python"], "'no-such-python' is no program"),
    ],
)
@pytest.mark.usefixtures("tiny")
def test_an_unusable_value_is_a_usage_error(pytester, options, said):
    result = run(pytester, *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert said in result.stderr.str()


@pytest.mark.usefixtures("target")
def test_the_ini_twin(pytester):
    pytester.makeini(
        "[pytest]\nfeature_contract = ckpt\nfeature_contract_target = target\nfeature_contract_live =\n    vllm\n"
        "feature_contract_live_args = dtype=float32\n"
    )
    result = pytester.runpytest("--collect-only", "-q")
    assert sum("::live-vllm-" in line for line in result.outlines) == 4 * len(phases("vllm"))
