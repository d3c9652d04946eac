from __future__ import annotations

from itertools import product

import pytest

from featurecontract.findings import EXIT_STATUS, Finding, Report, verdict_of


def made(severity, *, unchecked=False) -> Finding:
    return Finding(rule="FC000", slug="layer-shift", severity=severity, message="m", unchecked=unchecked)


ERROR, WARNING, NOTE = made("error"), made("warning"), made("note")
UNCHECKED = made("error", unchecked=True)

# findings, compared, strict -> verdict
TABLE = [
    ([], 1, False, "pass"),
    ([], 1, True, "pass"),
    ([], 0, False, "could-not-check"),
    ([], 0, True, "could-not-check"),
    ([NOTE], 1, False, "pass"),
    ([NOTE], 1, True, "pass"),
    ([NOTE], 0, True, "could-not-check"),
    ([WARNING], 1, False, "pass"),
    ([WARNING], 1, True, "fail"),
    ([WARNING], 0, False, "could-not-check"),
    ([WARNING], 0, True, "fail"),
    ([ERROR], 1, False, "fail"),
    ([ERROR], 1, True, "fail"),
    ([ERROR], 0, False, "fail"),
    ([ERROR], 0, True, "fail"),
    ([UNCHECKED], 1, False, "could-not-check"),
    ([UNCHECKED], 1, True, "could-not-check"),
    ([UNCHECKED], 0, False, "could-not-check"),
    ([UNCHECKED, ERROR], 1, False, "fail"),
    ([ERROR, UNCHECKED], 0, False, "fail"),
    ([UNCHECKED, WARNING], 1, False, "could-not-check"),
    ([UNCHECKED, WARNING], 1, True, "fail"),
    ([UNCHECKED, NOTE], 1, True, "could-not-check"),
    ([WARNING, NOTE], 1, False, "pass"),
]


@pytest.mark.parametrize(("findings", "compared", "strict", "verdict"), TABLE)
def test_verdict(findings, compared, strict, verdict):
    assert verdict_of(findings, compared=compared, strict=strict) == verdict
    assert verdict_of(findings[::-1], compared=compared, strict=strict) == verdict
    report = Report(checkpoint="c", findings=tuple(findings), compared=compared, strict=strict)
    assert report.verdict == verdict
    assert report.exit_status == {"pass": 0, "fail": 1, "could-not-check": 2}[verdict]


def test_every_combination_follows_the_three_sentences():
    """An error fails; else what could not be checked, or nothing compared, is could-not-check; else it passes."""
    kinds = {"error": ERROR, "warning": WARNING, "note": NOTE, "unchecked": UNCHECKED}
    for present in product((False, True), repeat=len(kinds)):
        names = {name for name, there in zip(kinds, present, strict=True) if there}
        for compared, strict in product((0, 1, 7), (False, True)):
            expected = "pass"
            if "error" in names or (strict and "warning" in names):
                expected = "fail"
            elif "unchecked" in names or not compared:
                expected = "could-not-check"
            assert verdict_of((kinds[name] for name in names), compared=compared, strict=strict) == expected


@pytest.mark.parametrize("severity", ["error", "warning", "note"])
def test_what_could_not_be_checked_never_passes_and_never_fails(severity):
    for strict in (False, True):
        assert verdict_of([made(severity, unchecked=True)], compared=5, strict=strict) == "could-not-check"


def test_three_statuses():
    assert EXIT_STATUS == {"pass": 0, "fail": 1, "could-not-check": 2}
