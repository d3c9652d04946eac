"""``--feature-contract-target T``."""

from __future__ import annotations

import json

import pytest


def run(pytester, *args):
    return pytester.runpytest("--feature-contract", "ckpt", "-v", *args)


@pytest.mark.parametrize("form", ["directory", "config", "text"])
def test_the_target_that_the_contract_names_passes(pytester, kimi, form):
    kimi(pytester.path / "ckpt")
    model = pytester.mkdir("model")
    config = {"architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 61, "hidden_size": 7168}
    (model / "config.json").write_text(json.dumps(config))
    text = {"directory": "model", "config": "model/config.json", "text": "K:61,7168,DeepseekV3ForCausalLM"}[form]
    assert run(pytester, "--feature-contract-target", text).ret == 0


def test_another_target_fails_the_config_statement(pytester, kimi, outcomes):
    kimi(pytester.path / "ckpt")
    result = run(pytester, "--feature-contract-target", "K:60,7168,DeepseekV3ForCausalLM")
    assert outcomes(result).of("FAILED") == ["checkpoint::config"]
    result.stdout.fnmatch_lines(["error * target-mismatch: *", "*num_hidden_layers 61*has 60*"])


@pytest.mark.parametrize("value", ["nowhere", "K:0,7168", "K:61"])
def test_a_target_that_cannot_be_used_is_a_usage_error(pytester, kimi, value):
    kimi(pytester.path / "ckpt")
    result = run(pytester, "--feature-contract-target", value)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --feature-contract-target: *LAYERS,WIDTH*"])
