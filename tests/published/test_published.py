"""Every published drafter on record is recognised, read as its sources allow, and predicted by every runtime."""

from __future__ import annotations

import copy
import re

import published_records as pr
import pytest

from featurecontract.dialects import Target, recognise
from featurecontract.gate import predict
from featurecontract.runtimes import NAMES

RECORDS = pr.records()
EACH = pytest.mark.parametrize("record", RECORDS, ids=[record["name"] for record in RECORDS])
SPREAD = {
    "D1": 2, "D2": 1, "D3": 2, "D4": 1, "D5": 6, "D7": 1, "D8": 3, "D9": 2, "D10": 2, "D11": 1, "D13": 3, "D14": 1,
    "D15": 1, "D16": 3, "D17": 4, "D18": 1, "D19": 1, "D20": 1, "D22": 3, "D25": 3, "D26": 1,
}  # fmt: skip


def recognised(record, config=None):
    depth, width = pr.target_of(record)
    return recognise(config or record["config"], Target(num_hidden_layers=depth, hidden_size=width))


def shown(wiring):
    return tuple((item.source, item.boundary, item.state) for item in wiring.features)


def test_the_record_is_whole():
    assert len(RECORDS) == 43
    assert len({record["name"] for record in RECORDS}) == 43
    counted = {code: sum(record["dialect"][0] == code for record in RECORDS) for code in SPREAD}
    assert counted == SPREAD
    assert sum(counted.values()) == 43
    assert len(NAMES) == 12


@EACH
def test_record_is_complete_and_public(record):
    expected = {"name", "source", "dialect", "config", "reconstructed", "target", "tensors", "truth", "basis", "note"}
    assert expected <= record.keys() <= expected | {"assumed", "contract", "no_contract"}
    assert ("contract" in record) != ("no_contract" in record)
    assert record["target"].keys() == {"name", "num_hidden_layers", "hidden_size", "architecture"}
    # What nobody states stays null, and the tests say what they take instead.
    unstated = None in (record["target"]["num_hidden_layers"], record["target"]["hidden_size"])
    assert unstated == ("assumed" in record)
    assert (record["truth"] is None) == (record["basis"] == "unknown")
    assert record["basis"] in ("stated", "inferred", "ambiguous", "unknown")
    assert (record["basis"] == "ambiguous") == (isinstance(record["truth"], list) and len(record["truth"]) > 1)
    assert not re.search(r"/(home|root|proving-grounds|model)/", str(record))
    for path in record["reconstructed"]:
        place = record["config"]
        for part in path.split("."):
            place = place[part]


@EACH
def test_dialect(record):
    found = recognised(record)
    assert found.code in record["dialect"]
    assert not found.findings


@EACH
def test_candidates_hold_the_truth(record):
    found = recognised(record)
    wirings = [shown(item.wiring) for item in found.candidates]
    assert wirings, "no reading at all"
    assert len(set(wirings)) == len(wirings)
    assert all(item.reason and 0 <= item.confidence < 1 for item in found.candidates)
    if record["basis"] in ("stated", "inferred"):
        # What is known is also what is believed first.
        assert wirings[0] == pr.truths(record)[0]
    if record["basis"] == "ambiguous" and record["dialect"] != ["D19"]:
        assert set(pr.truths(record)) <= set(wirings)
        assert max(item.confidence for item in found.candidates) < 0.97


def test_flat_dflash_offers_only_the_reading_of_the_trainers_that_write_it():
    record = next(item for item in RECORDS if item["dialect"] == ["D19"])
    (only,) = recognised(record).candidates
    assert shown(only.wiring) in pr.truths(record)
    assert only.confidence <= 0.8


@EACH
def test_every_runtime_predicts_or_says_why_not(record, tmp_path):
    directory = pr.write_checkpoint(record, tmp_path / "drafter")
    report = predict(directory, target=pr.target_option(record))
    names = {item.runtime.partition("==")[0] for item in report.predicted}
    assert {"vllm" if name.startswith("vllm-") else name for name in names} == set(NAMES)
    for item in report.predicted:
        assert re.fullmatch(r"[a-z.0-9-]+==\S+", item.runtime)
        assert item.wiring or item.alternatives or (item.crash and item.crash_message) or item.reason, item.runtime
        for wiring in (item.wiring, *item.alternatives.values()):
            assert wiring is None or wiring.features
    # The files agree with themselves: whatever is found, a runtime is the reason.
    assert {item.slug for item in report.findings if not item.runtime} <= set()


def test_published_mla_ids_and_their_template_are_the_same_planes():
    record = next(item for item in RECORDS if item["name"] == "lightseekorg/kimi-k2.5-eagle3-mla")
    published = copy.deepcopy(record["config"])
    published["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [2, 30, 58]
    first = recognised(record).candidates[0].wiring
    assert first.boundaries == (2, 30, 58)
    assert first.boundaries in [item.wiring.boundaries for item in recognised(record, published).candidates]


def test_leaked_target_depth_changes_no_reading():
    record = next(item for item in RECORDS if item["name"] == "AvitoTech/avibe-eagle")
    corrected = record["config"] | {"num_hidden_layers": 1}
    first, second = (recognised(record, config).candidates for config in (record["config"], corrected))
    assert [(item.wiring, item.confidence) for item in first] == [(item.wiring, item.confidence) for item in second]


def test_the_origin_story_is_in_no_reading_of_its_config(tmp_path):
    story = pr.read(pr.STORY)
    (truth,) = pr.truths(story)
    assert truth not in [shown(item.wiring) for item in recognised(story).candidates]
    report = predict(
        pr.write_checkpoint(story, tmp_path), target=pr.target_option(story), runtimes=("sglang==0.5.11", "vllm")
    )
    assert [str(item.wiring) for item in report.predicted] == ["h[3], h[31], h[59]", *["h[2], h[30], h[58]"] * 2]
