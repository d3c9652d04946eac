"""``--feature-contract-strict``: warnings fail the item that they belong to."""

from __future__ import annotations


def run(pytester, *args):
    return pytester.runpytest("--feature-contract", "ckpt", "-v", *args)


def test_a_warning_passes_and_strict_fails_it(pytester, kimi, outcomes):
    kimi(pytester.path / "ckpt", features="2,30,58")
    runtime = ("--feature-contract-runtime", "sglang==99.1")
    relaxed = run(pytester, *runtime)
    assert relaxed.ret == 0
    assert relaxed.stdout.str().count("sglang 99.1 is newer") == 1
    strict = run(pytester, *runtime, "--feature-contract-strict")
    assert outcomes(strict).of("FAILED") == ["predicted-sglang-99.1::runtime"]
    assert strict.stdout.str().count("sglang 99.1 is newer") == 1


def test_no_runtime_anywhere_is_an_error_when_strict(pytester, kimi, outcomes):
    kimi(pytester.path / "ckpt")
    result = run(pytester, "--feature-contract-strict")
    assert outcomes(result).of("ERROR") == ["predicted::runtime"]
    result.stdout.fnmatch_lines(["could not check * nothing-compared: *"])


def test_an_unclaimed_norm_is_a_warning_and_strict_fails_the_config_statement(pytester, kimi, outcomes):
    path = kimi(pytester.path / "ckpt")
    kimi.write_sparse(path / "model.safetensors", kimi.tensors() | {"input_norm.weight": ("BF16", [21504], None)})
    relaxed = run(pytester)
    assert relaxed.ret == 0
    relaxed.stdout.fnmatch_lines(["ckpt: warning * tensor-unclaimed: *", "*input_norm.weight*"])
    assert outcomes(run(pytester, "--feature-contract-strict")).of("FAILED") == ["checkpoint::config"]
