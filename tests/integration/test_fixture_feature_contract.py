"""The fixture ``feature_contract``."""

from __future__ import annotations


def test_one_checkpoint_is_not_a_parameter(pytester, kimi):
    kimi(pytester.path / "ckpt")
    pytester.makepyfile(
        test_it="""
        from featurecontract import Contract
        def test_it(feature_contract):
            assert isinstance(feature_contract, Contract)
            assert feature_contract.wiring.boundaries == (0, 3, 31)
        """
    )
    result = pytester.runpytest("--feature-contract", "ckpt", "-v", "-k", "test_it")
    result.stdout.fnmatch_lines(["test_it.py::test_it PASSED*"])


def test_several_checkpoints_are_parameters(pytester, kimi):
    kimi(pytester.path / "a")
    kimi(pytester.path / "b" / "c", features="3,31,59")
    pytester.makepyfile(test_it="def test_it(feature_contract): assert feature_contract.features[0].boundary in (0, 3)")
    result = pytester.runpytest("--feature-contract=a", "--feature-contract=b/c", "-v", "-k", "test_it")
    result.stdout.fnmatch_lines(["test_it.py::test_it[[]a[]] PASSED*", "test_it.py::test_it[[]b-c[]] PASSED*"])


def test_a_test_that_parametrises_the_name_itself_is_left_alone(pytester, kimi):
    kimi(pytester.path / "a")
    kimi(pytester.path / "b")
    pytester.makepyfile(
        """
        import pytest
        @pytest.mark.parametrize("feature_contract", [1, 2])
        def test_it(feature_contract): assert feature_contract in (1, 2)
        """
    )
    pytester.runpytest("--feature-contract=a", "--feature-contract=b", "-k", "test_it").assert_outcomes(
        passed=2, deselected=14
    )


def test_without_a_checkpoint_it_is_an_error_and_no_skip(pytester):
    pytester.makepyfile("def test_it(feature_contract): pass")
    result = pytester.runpytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["the fixture feature_contract needs a checkpoint: pytest --feature-contract CKPT"])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_a_broken_contract_is_an_error_on_one_line(pytester, kimi):
    (kimi(pytester.path / "ckpt") / "feature_contract.json").write_text("{")
    pytester.makepyfile("def test_it(feature_contract): pass")
    result = pytester.runpytest("--feature-contract", "ckpt")
    result.assert_outcomes(errors=2)
    assert len([line for line in result.outlines if line.startswith("could not check (contract-invalid)")]) == 2
    result.stdout.no_fnmatch_line("*During handling*")


def test_a_contract_beside_a_broken_checkpoint_is_still_given(pytester, kimi):
    (kimi(pytester.path / "ckpt") / "model.safetensors").write_bytes(b"1234")
    pytester.makepyfile("def test_it(feature_contract): assert feature_contract.method == 'eagle3'")
    pytester.runpytest("--feature-contract", "ckpt").assert_outcomes(passed=1, errors=1)
