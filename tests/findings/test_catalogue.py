from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from featurecontract.errors import UsageError
from featurecontract.findings import catalogue, rule_for

ROOT = Path(__file__).resolve().parents[2]
GROUPS = {
    "1": "could-not-check",
    "2": "static",
    "3": "wiring",
    "4": "rows",
    "5": "replay",
    "6": "flags",
    "7": "recording",
}

# The public list of slugs: names may be added, none may go.
PUBLIC = {
    "could-not-check": """contract-missing contract-invalid contract-version checkpoint-unreadable runtime-unknown
        probe-missing nothing-captured nothing-compared inconclusive""",
    "static": """features-missing ids-ambiguous ids-conflict ids-out-of-range ids-duplicate width tensor-missing
        tensor-unclaimed tensor-digest vocab-map embedding-source head-source rope norm-flag-unread bias-unread
        target-mismatch runtime-newer""",
    "wiring": """layer-shift layer-mismatch order embedding-missing embedding-unexpressible slot-missing slot-extra
        slot-duplicate ids-unread ids-defaulted final-norm norm-before-fc recurrent-state residual-missing partial-sum
        mid-block scale basis unidentified noise-above-floor""",
    "rows": """rows-shifted rows-missing rows-swapped rows-corrupt tokens-shifted stale constant zero non-finite
        planes-sampled""",
    "replay": "accuracy-below wiring-disagrees draft-tokens-differ",
    "flags": "draft-tokens-forced steps-forced forced-acceptance draft-path-default algorithm-missing",
    "recording": "probe-degenerate",
}


@pytest.mark.parametrize("group", PUBLIC)
def test_public_slugs_exist_in_their_group(group):
    for slug in PUBLIC[group].split():
        assert rule_for(slug).group == group


def test_ids_are_unique_ordered_and_grouped_by_hundred():
    ids = [rule.rule for rule in catalogue().values()]
    assert ids == sorted(set(ids))
    for rule in catalogue().values():
        assert re.fullmatch(r"FC\d{3}", rule.rule)
        assert rule.group == GROUPS[rule.rule[2]]
        assert rule.unchecked == (rule.group == "could-not-check")


@pytest.mark.parametrize("slug", catalogue())
def test_every_rule_is_explained(slug):
    rule = rule_for(slug)
    assert 40 <= len(rule.text.split()) <= 120
    assert 10 <= len(rule.title) <= 120
    assert not rule.title.endswith(".")
    assert rule.text.endswith((".", ")."))
    assert rule.text.isprintable()


def test_texts_and_titles_are_different():
    assert len({rule.text for rule in catalogue().values()}) == len(catalogue())
    assert len({rule.title for rule in catalogue().values()}) == len(catalogue())


def test_a_rule_is_found_by_id_and_a_typo_gets_the_nearest_names():
    assert rule_for("FC304") is rule_for("embedding-missing")
    with pytest.raises(UsageError, match=r"did you mean .*embedding-missing"):
        rule_for("embeding-missing")


def test_the_page_of_rules_is_up_to_date():
    spec = importlib.util.spec_from_file_location("make_rules", ROOT / "docs" / "make_rules.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    assert page == module.rules_page(), "run `python docs/make_rules.py`"
    assert [line.split("`")[1] for line in page.splitlines() if line.startswith("### ")] == list(catalogue())
