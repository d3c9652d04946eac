"""Installed and unused, the plugin costs nothing: no import, no hook, no line of output."""

from __future__ import annotations

import re
import subprocess
import sys

HEAVY = ("torch", "jsonschema", "hypothesis", "rich", "click", "safetensors", "numpy", "packaging")
BUDGET_MICROSECONDS = 5000


def test_the_module_imports_nothing_heavy_and_none_of_our_own():
    code = (
        "import pytest, sys; before = set(sys.modules); import featurecontract.pytest_plugin;"
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['featurecontract', 'featurecontract._version', 'featurecontract.pytest_plugin']"


def test_the_import_is_within_its_budget():
    code = "import pytest; import featurecontract.pytest_plugin"
    taken = []
    for _ in range(5):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True, check=True
        )
        line = next(text for text in done.stderr.splitlines() if text.endswith("featurecontract.pytest_plugin"))
        taken.append(int(re.findall(r"\d+", line)[1]))
    # The least of five: a busy machine adds to the others.
    assert min(taken) <= BUDGET_MICROSECONDS


def test_an_ordinary_run_loads_nothing_more(pytester):
    pytester.makepyfile(
        f"""
        import sys
        def test_modules():
            ours = [name for name in sys.modules if name.startswith("featurecontract")]
            assert sorted(ours) == ["featurecontract", "featurecontract._version", "featurecontract.pytest_plugin"]
            assert not {set(HEAVY[:1])!r} & set(sys.modules)
        def test_hooks(pytestconfig):
            assert not pytestconfig.pluginmanager.has_plugin("featurecontract-session")
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:xdist")
    result.assert_outcomes(passed=2)
    result.stdout.no_fnmatch_line("featurecontract: *")


def test_none_of_the_heavy_modules_comes_with_a_run_without_the_hypothesis_plugin(pytester):
    pytester.makepyfile(
        f"""
        import sys
        def test_modules():
            assert not set({HEAVY[:6]!r}) & set(sys.modules)
        """
    )
    pytester.runpytest_subprocess("-p", "no:hypothesispytest").assert_outcomes(passed=1)
