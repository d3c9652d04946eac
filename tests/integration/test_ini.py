"""The ini twins: each option under its own name with underscores, paths from the ini file's directory."""

from __future__ import annotations

import json

import pytest


def test_every_option_has_a_twin(pytester):
    pytester.makepyfile(
        """
        def test_twins(request):
            options = [name for name in vars(request.config.option) if name.startswith("feature_contract")]
            assert len(options) == 17
            for name in options:
                request.config.getini(name)
        """
    )
    pytester.runpytest().assert_outcomes(passed=1)


def test_the_ini_file_alone_is_enough(pytester, kimi, outcomes, monkeypatch):
    kimi(pytester.path / "models" / "my ckpt", features="2,30,58")
    pytester.makeini(
        """
        [pytest]
        feature_contract =
            models/my ckpt
        feature_contract_runtime =
            sglang==99.1
            sglang==0.5.13
        feature_contract_target = K:61,7168,DeepseekV3ForCausalLM
        feature_contract_serve_args = --speculative-algorithm EAGLE3 --speculative-num-steps 3
        feature_contract_strict = true
        feature_contract_report = report.json
        """
    )
    below = pytester.mkdir("below")
    monkeypatch.chdir(below)
    result = pytester.runpytest("-v", "--rootdir", "..")
    found = outcomes(result, "../models/my-ckpt") or outcomes(result, "models/my-ckpt")
    assert "predicted-sglang-99.1::runtime" in found.of("FAILED")
    assert "predicted-sglang-0.5.13::serve-args" in found
    assert json.loads((pytester.path / "report.json").read_text())["exit_status"] == 1


def test_the_command_line_replaces_a_list(pytester, kimi, outcomes):
    kimi(pytester.path / "ckpt", features="3,31,59")
    pytester.makeini("[pytest]\nfeature_contract = ckpt\nfeature_contract_runtime = sglang==0.5.13\n")
    assert outcomes(pytester.runpytest("-v")).of("FAILED")
    assert not outcomes(pytester.runpytest("-v", "--feature-contract-runtime", "sglang==0.5.12")).of("FAILED")


def test_runtimes_in_the_ini_file_without_a_checkpoint_do_nothing(pytester):
    pytester.makeini("[pytest]\nfeature_contract_runtime = sglang==0.5.13\n")
    pytester.makepyfile("def test_own(): pass")
    result = pytester.runpytest()
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("featurecontract: *")


def test_a_value_that_cannot_be_used_names_the_ini_key(pytester, kimi):
    kimi(pytester.path / "ckpt")
    pytester.makeini("[pytest]\nfeature_contract = ckpt\nfeature_contract_runtime = sglang=1\n")
    result = pytester.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: feature_contract_runtime in tox.ini: 'sglang=1' is not NAME*"])


def test_an_equals_sign_keeps_the_rootdir_for_a_checkpoint_outside(pytester, kimi, tmp_path_factory):
    outside = kimi(tmp_path_factory.mktemp("outside") / "ckpt", features="3,31,59")
    pytester.makeini("[pytest]\nfeature_contract_runtime = sglang==0.5.12\n")
    result = pytester.runpytest(f"--feature-contract={outside}", "-v")
    result.assert_outcomes(passed=12)
    result.stdout.fnmatch_lines([f"rootdir: {pytester.path}", "configfile: tox.ini"])
