"""``--feature-contract-digests``: the tensors' bytes too."""

from __future__ import annotations


def run(pytester, *args):
    return pytester.runpytest("--feature-contract", "ckpt", "-v", *args)


def test_changed_bytes_fail_their_tensor_only_with_the_option(pytester, kimi, outcomes):
    path = kimi(pytester.path / "ckpt", hidden=64, digests=True)
    assert run(pytester, "--feature-contract-digests").ret == 0
    changed = kimi.tensors(64) | {"fc.weight": ("BF16", [64, 192], b"\x01" * (64 * 192 * 2))}
    kimi.write_sparse(path / "model.safetensors", changed)
    assert run(pytester).ret == 0
    result = run(pytester, "--feature-contract-digests")
    assert outcomes(result).of("FAILED") == ["checkpoint::tensor-fc.weight"]
    result.stdout.fnmatch_lines(["error * tensor-digest: *"])


def test_a_contract_without_digests_is_said_in_the_summary(pytester, kimi):
    kimi(pytester.path / "ckpt", hidden=64)
    run(pytester, "--feature-contract-digests").stdout.fnmatch_lines(["ckpt: the contract records no digest*"])
