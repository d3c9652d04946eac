from __future__ import annotations

import math

import pytest
from contract_values import FULL, MINIMAL, SHA, changed

from featurecontract.contract import contract_from_dict, contract_to_dict, newer_minor
from featurecontract.errors import InputError


def problems(value, *, slug="contract-invalid") -> list[tuple[str, str]]:
    with pytest.raises(InputError) as caught:
        contract_from_dict(value, source="c.json")
    assert caught.value.slug == slug
    assert caught.value.source == "c.json"
    return [(item.place, item.message) for item in caught.value.problems]


def test_minimal_and_full_contracts_decode():
    assert contract_from_dict(MINIMAL, source="c").wiring.boundaries == (0, 31)
    full = contract_from_dict(FULL, source="c")
    assert (full.wiring.pre_norm, full.wiring.recurrent_state, full.wiring.bias) == ("per_feature", "post_norm", True)
    assert str(full.wiring) == "embedding, norm(h[61])"


def test_null_is_not_stated():
    assert contract_from_dict(changed(FULL, "rope", None), source="c").rope is None
    assert contract_from_dict(changed(FULL, "alignment", None), source="c").alignment.token_shift == 1
    assert "rope" not in contract_to_dict(contract_from_dict(changed(FULL, "rope", None), source="c"))


# path, wrong value, the place and the message
WRONG = [
    ("name", 3, "name", "expected a string of 1 to 4096 characters, found 3"),
    ("name", "", "name", "expected a string of 1 to 4096 characters, found ''"),
    ("name", "n" * 4097, "name", "expected a string of 1 to 4096 characters"),
    ("name", None, "name", "expected a string of 1 to 4096 characters, found None"),
    ("name", ..., "name", "is missing"),
    ("method", "eagle4", "method", "expected one of eagle, eagle3"),
    ("target", [], "target", "expected an object, found a list of 0 items"),
    ("target.num_hidden_layers", 0, "target.num_hidden_layers", "expected an integer from 1 to 100000, found 0"),
    ("target.num_hidden_layers", True, "target.num_hidden_layers", "expected an integer from 1 to 100000, found True"),
    ("target.num_hidden_layers", 1.5, "target.num_hidden_layers", "expected an integer from 1 to 100000, found 1.5"),
    ("target.num_hidden_layers", ..., "target.num_hidden_layers", "is missing"),
    ("target.basis", "skewed", "target.basis", "expected one of standard, rotated, found 'skewed'"),
    ("target.tokenizer_sha256", SHA.upper(), "target.tokenizer_sha256", "expected a sha256 digest"),
    ("target.tokenizer_sha256", SHA + "\n", "target.tokenizer_sha256", "expected a sha256 digest"),
    ("drafter.block.size", "16", "drafter.block.size", "expected an integer from 1 to 100000, found '16'"),
    ("drafter.tensors[0].shape[1]", -1, "drafter.tensors[0].shape[1]", "expected an integer of at least 0, found -1"),
    ("features", [], "features", "expected a list of at least 1 item(s), found a list of 0 items"),
    ("features", {"0": 1}, "features", "expected a list of at least 1 item(s), found an object of 1 keys"),
    ("features[1]", None, "features[1]", "expected an object, found None"),
    ("features[1].boundary", "31", "features[1].boundary", "expected an integer from 0 to 100000, found '31'"),
    ("features[1].boundary", -1, "features[1].boundary", "expected an integer from 0 to 100000, found -1"),
    ("features[1].state", "mid_block", "features[1].state", "expected one of residual, final_norm, found 'mid_block'"),
    ("features[1].dim", ..., "features[1].dim", "is missing"),
    ("features[0].scale", math.inf, "features[0].scale", "expected a number, found inf"),
    ("features[0].scale", math.nan, "features[0].scale", "expected a number, found nan"),
    ("features[0].scale", 10**400, "features[0].scale", "expected a number, found 1000"),
    ("projections[0].slots", [], "projections[0].slots", "expected a list of at least 1 item(s)"),
    ("projections[0].bias", 1, "projections[0].bias", "expected true or false, found 1"),
    ("rope.scaling", [], "rope.scaling", "expected an object, found a list of 0 items"),
    ("rope.theta", -1, "rope.theta", "expected a number from 0 to inf, found -1"),
    ("quality.step_accuracies[1]", 1.5, "quality.step_accuracies[1]", "expected a number from 0 to 1, found 1.5"),
    ("provenance.statements[0].source", "guess", "provenance.statements[0].source", "expected one of recorded"),
]


@pytest.mark.parametrize(("path", "value", "place", "message"), WRONG, ids=[f"{w[0]}={w[1]!r:.12}" for w in WRONG])
def test_every_error_has_its_json_path(path, value, place, message):
    ((found, text),) = problems(changed(FULL, path, value))
    assert found == place
    assert text.startswith(message)
    assert len(text) < 250


@pytest.mark.parametrize("value", [None, 1, "text", [], True])
def test_a_contract_is_an_object(value):
    ((place, message),) = problems(value)
    assert place == ""
    assert message.startswith("expected an object, found")


def test_every_problem_is_reported_at_once():
    value = changed(FULL, "features[1].boundary", "31")
    value = changed(value, "target.hidden_size", ...)
    value = changed(value, "featurs", [])
    value = changed(value, "probe.rows", 0)
    value = changed(value, "rope.thetta", 1)
    assert {place for place, _ in problems(value)} == {
        "features[1].boundary",
        "target.hidden_size",
        "featurs",
        "probe.rows",
        "rope.thetta",
    }


def test_the_message_shows_five_and_counts_the_rest():
    value = {**MINIMAL, **{f"key{i}": i for i in range(9)}}
    with pytest.raises(InputError, match=r"\| and 4 more$"):
        contract_from_dict(value, source="c")


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("featurs", "did you mean features?"),
        ("target.num_hiden_layers", "did you mean num_hidden_layers?"),
        ("features[0].boundry", "did you mean boundary?"),
        ("drafter.tensors[0].shap", "did you mean shape?"),
        ("zzzz", "remove it"),
        ("extra", "remove it"),
    ],
)
def test_an_unknown_key_gets_a_suggestion(path, hint):
    with pytest.raises(InputError) as caught:
        contract_from_dict(changed(FULL, path, 1), source="c")
    (problem,) = caught.value.problems
    assert (problem.place, problem.message, problem.next_step) == (path, "unknown key", hint)


# --- versions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["2.0", "0.9", "10.0", "999999.0"])
def test_an_unknown_major_is_its_own_error(version):
    ((place, message),) = problems({"contract_version": version, "anything": []}, slug="contract-version")
    assert place == "contract_version"
    assert message == f"contract version {version} is not known; this package reads 1.x"


@pytest.mark.parametrize("version", ["", "1", "1.0.0", "v1.0", "1.0 ", "1.0\n", "1.00", "01.0", "1.-1", "1.\u0661"])
def test_what_is_no_version_is_its_own_error(version):
    ((place, message),) = problems(changed(MINIMAL, "contract_version", version), slug="contract-version")
    assert place == "contract_version"
    assert "is not a version such as 1.0" in message


def test_a_version_of_another_type_is_invalid():
    assert problems(changed(MINIMAL, "contract_version", 1.0)) == [
        ("contract_version", "expected a string of 1 to 4096 characters, found 1.0")
    ]
    assert problems(changed(MINIMAL, "contract_version", ...)) == [("contract_version", "is missing")]


NEWER = [
    ("future", {"a": [1, {"b": None}]}),
    ("extra", {"extra": 1}),
    ("target.future", 1),
    ("features[1].future", [1]),
    ("drafter.block.future", "x"),
    ("drafter.tensors[0].future", None),
    ("provenance.statements[0].future", True),
]


@pytest.mark.parametrize(("path", "value"), NEWER, ids=[path for path, _ in NEWER])
def test_a_newer_minor_keeps_what_it_does_not_know(path, value):
    newer = changed(changed(FULL, "contract_version", "1.7"), path, value)
    contract = contract_from_dict(newer, source="c")
    written = contract_to_dict(contract)
    assert changed(written, path, ...) == contract_to_dict(
        contract_from_dict(changed(FULL, "contract_version", "1.7"), source="c")
    )
    assert contract_from_dict(written, source="c") == contract
    assert changed(newer, path, ...) != newer
    assert changed(written, path, value) == written
    # The same key in a version that is known whole is a mistake.
    assert [place for place, _ in problems(changed(FULL, path, value))] == [path]


def test_a_newer_minor_still_refuses_wrong_values_of_known_keys():
    newer = changed(changed(FULL, "contract_version", "1.7"), "features[1].boundary", "x")
    assert [place for place, _ in problems(newer)] == ["features[1].boundary"]


def test_which_versions_are_newer():
    assert [newer_minor(v) for v in ("1.0", "1.1", "1.10", "2.1", "0.9")] == [False, True, True, False, False]


# --- consistency --------------------------------------------------------------------------------------------------

CONTRADICTIONS = [
    ("features[1].slot", 0, "features[1].slot", "is 0 at position 1"),
    ("features[1].boundary", 62, "features[1].boundary", "h[62] does not exist on a target of 61 layers"),
    ("features[0].boundary", None, "features[0].boundary", "is missing"),
    ("features[1].boundary", 60, "features[1].state", "final_norm is the norm of h[61], not of h[60]"),
    ("features[0].source", "mask_row", "features[0].boundary", "a slice whose source is mask_row has no boundary"),
    ("projections[0].slots", [0, 2], "projections[0].slots", "slot 2 does not exist; there are 2 features"),
    ("projections[0].in_features", 24, "projections[0].in_features", "is 24, but its 2 slots are 16 wide together"),
    ("features[0].dim", 16, "projections[0].in_features", "is 16, but its 2 slots are 24 wide together"),
    ("vocab.draft_vocab_size", 101, "vocab.draft_vocab_size", "101 is more than the target's vocabulary of 100"),
    ("probe.file", "../../etc/passwd", "probe.file", "'../../etc/passwd' is not a plain file name"),
    ("probe.file", "/etc/passwd", "probe.file", "'/etc/passwd' is not a plain file name"),
    ("probe.file", "..", "probe.file", "'..' is not a plain file name"),
    ("probe.file", "a\0b", "probe.file", "'a\\x00b' is not a plain file name"),
    ("probe.file", "C:x", "probe.file", "'C:x' is not a plain file name"),
]


@pytest.mark.parametrize(("path", "value", "place", "message"), CONTRADICTIONS)
def test_contradictions(path, value, place, message):
    assert problems(changed(FULL, path, value)) == [(place, message)]


def test_contradictions_are_reported_together():
    value = changed(changed(FULL, "features[1].slot", 5), "vocab.draft_vocab_size", 1000)
    assert [place for place, _ in problems(value)] == ["features[1].slot", "vocab.draft_vocab_size"]


def test_half_of_a_surrogate_pair_is_refused_before_it_is_written():
    ((place, message),) = problems(changed(MINIMAL, "name", "a\udcff"))
    assert place == "name"
    assert message.startswith("expected a string that is valid UTF-8")
