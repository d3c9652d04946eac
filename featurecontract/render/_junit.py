"""JUnit XML: a suite for the contract and one for each runtime, a test case for each statement."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET  # only written here, never parsed

from featurecontract.render._clean import clean
from featurecontract.render._values import MAX_SLOTS
from featurecontract.render._view import Entry, entries, heading, is_failing, ordered, predicted_text

if TYPE_CHECKING:
    from featurecontract.findings import Finding, Predicted, Report

__all__ = ["render"]

MAX_CASE_SLOTS = 1000
CONTRACT = "contract"


@dataclass
class _Case:
    name: str
    texts: list[str] = field(default_factory=list)
    headings: list[str] = field(default_factory=list)
    failed: bool = False
    unchecked: bool = False
    skipped: str = ""


@dataclass
class _Suite:
    name: str
    classname: str
    cases: dict[str, _Case] = field(default_factory=dict)

    def case(self, name: str) -> _Case:
        return self.cases.setdefault(name, _Case(name))


def render(report: Report, *, color: bool = False, kind: str = "check") -> str:
    """Return the suites; a case with several findings holds one result element with all of them."""
    del color, kind
    root = ET.Element("testsuites", name="featurecontract")
    suites = [_element(suite) for suite in _suites(report)]
    for attribute in ("tests", "failures", "errors", "skipped"):
        root.set(attribute, str(sum(int(suite.get(attribute, "0")) for suite in suites)))
    root.extend(suites)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suites(report: Report) -> list[_Suite]:
    by_runtime: dict[str | None, _Suite] = {None: _Suite(CONTRACT, CONTRACT)}
    for item in report.predicted:
        by_runtime[item.runtime] = _predicted_suite(item)
    for found, entry in zip(ordered(report), entries(report), strict=True):
        suite = by_runtime.get(found.runtime)
        if suite is None:
            name = clean(found.runtime, limit=120)
            suite = by_runtime[found.runtime] = _Suite(name, f"runtime-{_part(name)}")
        _add(suite, found, entry, report)
    contract = by_runtime[None]
    if report.verdict == "could-not-check" and not any(item.unchecked for item in report.findings):
        case = contract.case("nothing-compared")
        case.unchecked = True
        case.headings.append("nothing was compared")
    if not contract.cases:
        contract.case("report")
    return list(by_runtime.values())


def _predicted_suite(item: Predicted) -> _Suite:
    name = clean(item.runtime, limit=120)
    suite = _Suite(name, f"predicted-{_part(name.replace('==', '-'))}")
    if item.wiring is None or not item.wiring.features:
        suite.case("wiring").skipped = predicted_text(item)
    else:
        for feature in item.wiring.features[:MAX_CASE_SLOTS]:
            suite.case(f"slot-{feature.slot}")
    return suite


def _add(suite: _Suite, found: Finding, entry: Entry, report: Report) -> None:
    """Put a finding on every case whose slot it names, in full on the first, by reference on the others."""
    names = [f"slot-{slot}" for slot in found.slots[:MAX_CASE_SLOTS]] or [found.slug]
    for index, name in enumerate(names):
        case = suite.case(name)
        case.failed |= is_failing(found, report)
        case.unchecked |= found.unchecked
        case.headings.append(f"{entry.level} {heading(found)}")
        if index:
            case.texts.append(f"{entry.level} {heading(found)}\nsee {names[0]}")
        else:
            body = "\n".join(f"{label}: {value}" for label, value in entry.lines)
            case.texts.append(f"{entry.level} {entry.heading}\n{body}")


def _element(suite: _Suite) -> ET.Element:
    cases = list(suite.cases.values())
    kinds = [_kind(case) for case in cases]
    out = ET.Element(
        "testsuite",
        name=suite.name,
        tests=str(len(cases)),
        failures=str(kinds.count("failure")),
        errors=str(kinds.count("error")),
        skipped=str(kinds.count("skipped")),
    )
    for case, kind in zip(cases, kinds, strict=True):
        node = ET.SubElement(out, "testcase", classname=suite.classname, name=_part(case.name))
        text = "\n\n".join(case.texts)
        if kind in ("failure", "error"):
            result = ET.SubElement(node, kind, message="; ".join(case.headings[:MAX_SLOTS]), type=kind)
            result.text = text
        elif kind == "skipped":
            ET.SubElement(node, "skipped", message=case.skipped)
        elif text:
            ET.SubElement(node, "system-out").text = text
    return out


def _kind(case: _Case) -> str:
    if case.failed:
        return "failure"
    if case.unchecked:
        return "error"
    return "skipped" if case.skipped else "passed"


def _part(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.+-]", "-", text)
