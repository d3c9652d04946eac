"""The contracts of published drafters: rebuilt from the record, valid, honest about what is not known, usable."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import jsonschema
import published_records as pr
import pytest

from featurecontract.contract import CONTRACT_FILE, dumps, load
from featurecontract.gate import check
from featurecontract.runtimes import NAMES

ROOT = Path(__file__).parents[2]
CONTRACTS = ROOT / "contracts"


def _builder():
    spec = importlib.util.spec_from_file_location("build_contracts", CONTRACTS / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BUILD = _builder()
STORY = pr.read(pr.STORY)
RECORDS = [record for record in (*pr.records(), STORY) if "contract" in record]
EACH = pytest.mark.parametrize("record", RECORDS, ids=[record["name"] for record in RECORDS])


def contract_file(record):
    return CONTRACTS / BUILD.folder(record) / CONTRACT_FILE


def statement(contract, path):
    return next(item for item in contract.provenance.statements if item.path == path)


@pytest.fixture(scope="module")
def schema():
    return json.loads((CONTRACTS / "schema" / "feature_contract-1.schema.json").read_text("utf-8"))


def test_the_folders_and_the_page_are_up_to_date():
    written = BUILD.contracts()
    folders = {path.parent.name for path in CONTRACTS.glob(f"*/{CONTRACT_FILE}")}
    assert folders == written.keys(), "run `python contracts/build.py`"
    assert len(folders) == 33
    assert BUILD.PAGE.read_text("utf-8") == BUILD.page(written), "run `python contracts/build.py`"


@EACH
def test_contract_is_up_to_date_and_canonical(record):
    data = contract_file(record).read_bytes()
    assert data == dumps(BUILD.contract_of(record)), "run `python contracts/build.py`"
    assert dumps(load(contract_file(record))) == data


@EACH
def test_contract_is_valid_by_the_published_schema(record, schema):
    jsonschema.Draft202012Validator(schema).validate(json.loads(contract_file(record).read_bytes()))


@EACH
def test_features_are_a_truth_of_the_record_or_an_honest_default(record):
    contract = load(contract_file(record))
    declared = tuple((item.source, item.boundary, item.state) for item in contract.features)
    told = statement(contract, "features")
    known = pr.truths(record)
    assert declared in known or not known
    assert record["source"] in told.reason
    if record["basis"] in ("ambiguous", "unknown"):
        assert told.confidence < 0.8
    if record["basis"] == "ambiguous":
        assert told.confidence < 0.6
        assert "the alternative is " in told.reason
    if record["basis"] in ("stated", "inferred"):
        assert 0.8 <= told.confidence < 1
    assert told.source == ("declared" if record is STORY else "inferred")


@EACH
def test_target_is_the_record_s(record):
    target = load(contract_file(record)).target
    found = {key: getattr(target, key) for key in record["target"]}
    assert found == record["target"]


@EACH
def test_nothing_that_was_filled_in_reaches_a_contract(record):
    contract = load(contract_file(record))
    stated = pr.stated_config(record)
    for value, key in (
        (contract.vocab.draft_vocab_size, "draft_vocab_size"),
        (contract.target.vocab_size, "vocab_size"),
    ):
        assert value == pr.body_value(stated, key)
    if contract.rope and "rope_theta" not in record["contract"]:
        inner = pr.body_value(stated, "rope_parameters") or {}
        assert contract.rope.theta == (pr.body_value(stated, "rope_theta") or inner.get("rope_theta"))
    assert (contract.drafter.block is None) == ("block_size" not in str(stated))


@EACH
def test_ids_of_the_provenance_are_the_config_s(record):
    told = load(contract_file(record)).provenance
    assert (told.ids is None) == (told.ids_key is None) == (told.convention is None)
    if told.ids is not None:
        place = record["config"]
        for part in told.ids_key.split("."):
            place = place[part]
        assert tuple(place) == told.ids
    assert told.dialect == BUILD.recognition(record).dialect


@EACH
def test_copied_beside_its_checkpoint_it_says_what_each_runtime_does(record, tmp_path):
    directory = pr.write_checkpoint(record, tmp_path / "drafter")
    shutil.copy(contract_file(record), directory)
    report = check(directory, runtimes=NAMES)
    assert len(report.predicted) == 13
    assert report.declared is not None
    alone = {item.slug for item in report.findings if not item.runtime}
    # AngelSlim's config states the target's rope_theta, which is the very thing its contract corrects.
    expected = {"rope"} if record["name"].startswith("AngelSlim/") else set()
    assert alone - {"runtime-newer"} == expected


def story_on(runtime, tmp_path):
    directory = pr.write_checkpoint(STORY, tmp_path / "drafter")
    shutil.copy(contract_file(STORY), directory)
    return check(directory, runtimes=(runtime,))


def test_the_origin_story_fails_where_it_failed(tmp_path):
    report = story_on("sglang==0.5.12", tmp_path)
    assert report.verdict == "fail"
    assert [item.slug for item in report.findings if item.severity == "error"] == ["embedding-missing"]
    contract = load(contract_file(STORY))
    assert contract.wiring.boundaries == (0, 3, 31)
    assert contract.quality.step_accuracies == (0.769,)
    assert "1.6 to 1.9 of 16" in statement(contract, "quality").reason


def test_a_published_drafter_passes_on_the_runtime_it_was_published_for(tmp_path):
    record = next(item for item in RECORDS if item["name"] == "z-lab/Qwen3-8B-DFlash-b16")
    directory = pr.write_checkpoint(record, tmp_path / "drafter")
    shutil.copy(contract_file(record), directory)
    report = check(directory, runtimes=("sglang",))
    assert [item.severity for item in report.findings if item.slug != "runtime-newer"].count("error") == 0
    assert str(report.predicted[0].wiring) == "h[2], h[10], h[18], h[26], h[34]"
