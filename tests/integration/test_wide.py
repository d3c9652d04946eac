"""A contract of thousands of slots: no step of the plugin goes through all statements for each of them."""

from __future__ import annotations

import time

from featurecontract.plugin._placement import Plan

SLOTS = 2500


def test_thousands_of_failing_statements_take_seconds(pytester, kimi):
    """Without the two indexes in the session this took ten times as long."""
    path = kimi(pytester.path / "ckpt", features=None, hidden=8)
    kimi.write_sparse(path / "model.safetensors", kimi.tensors(hidden=8, planes=SLOTS))
    from featurecontract.gate import write_contract

    listed = ",".join(str(index + 1) for index in range(SLOTS))
    write_contract(str(path), target="Deep:3000,8,DeepseekV3ForCausalLM", features=listed, force=True)
    begun = time.monotonic()
    result = pytester.runpytest("-q", "--feature-contract", "ckpt", "--feature-contract-runtime", "sglang==0.5.12")
    took = time.monotonic() - begun
    assert result.parseoutcomes()["failed"] > SLOTS
    assert result.stdout.str().count("see ckpt/feature_contract.json::") >= SLOTS - 10
    assert took < 30


def test_addresses_are_laid_out_once():
    plan = Plan()
    assert plan.addresses is plan.addresses
