"""``--feature-contract CKPT``: what is collected, and how the items behave beside everything else pytest does."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET

import pytest

SGLANG = ("--feature-contract-runtime", "sglang==0.5.12")
STATIC = [
    "contract::schema",
    "contract::digest",
    "checkpoint::config",
    "checkpoint::width",
    "checkpoint::vocab-map",
    "checkpoint::tensor-fc.weight",
    "checkpoint::tensor-lm_head.weight",
]
PREDICTED = [f"predicted-sglang-0.5.12::{name}" for name in ("runtime", "slot-0", "slot-1", "slot-2", "norms")]


@pytest.fixture
def ckpt(pytester, kimi):
    return kimi(pytester.path / "ckpt")


@pytest.mark.usefixtures("ckpt")
def test_the_node_ids_are_these_in_this_order(pytester, collected):
    result = pytester.runpytest("--feature-contract", "ckpt", *SGLANG, "--collect-only", "-q")
    assert collected(result) == [f"ckpt/feature_contract.json::{name}" for name in STATIC + PREDICTED]
    assert result.ret == 0


@pytest.mark.usefixtures("ckpt")
def test_a_directory_without_test_files_is_no_empty_run(pytester):
    result = pytester.runpytest("--feature-contract", "ckpt/")
    assert result.ret == 0
    result.assert_outcomes(passed=len(STATIC))


@pytest.mark.usefixtures("ckpt")
def test_the_finding_fails_its_slot_and_the_others_pass(pytester, outcomes):
    result = pytester.runpytest("--feature-contract", "ckpt", *SGLANG, "-v")
    found = outcomes(result)
    assert list(found) == STATIC + PREDICTED
    assert found.of("FAILED") == ["predicted-sglang-0.5.12::slot-0"]
    assert found.of("PASSED") == [name for name in STATIC + PREDICTED if not name.endswith("slot-0")]
    assert result.ret == 1


def test_the_failure_is_the_text_renderers_block_without_a_traceback(pytester, ckpt):
    from featurecontract.gate import check
    from featurecontract.render import render

    result = pytester.runpytest("--feature-contract", "ckpt", *SGLANG)
    text = render(check(ckpt, runtimes=["sglang==0.5.12"]), "text")
    block = text[text.index("error FC304") :].split("\n\n")[0]
    assert block in result.stdout.str()
    assert "next step:" in block
    result.stdout.fnmatch_lines(["*h[[]31] = output of layer 30 = SGLang/SpecForge/TRT-LLM id 30*"])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*_items.py*")
    result.stdout.fnmatch_lines(["FAILED ckpt/feature_contract.json::predicted-sglang-0.5.12::slot-0*"])


@pytest.mark.usefixtures("ckpt")
def test_one_header_line(pytester):
    result = pytester.runpytest("--feature-contract", "ckpt", *SGLANG)
    assert [line for line in result.outlines if line.startswith("featurecontract:")] == [
        "featurecontract: ckpt, runtimes sglang==0.5.12"
    ]


@pytest.mark.usefixtures("ckpt")
def test_beside_the_users_own_tests_and_explicit_paths(pytester):
    pytester.makepyfile(test_own="def test_own(): pass", test_other="def test_other(): assert False")
    everything = pytester.runpytest("--feature-contract", "ckpt")
    everything.assert_outcomes(passed=len(STATIC) + 1, failed=1)
    chosen = pytester.runpytest("test_own.py", "--feature-contract", "ckpt")
    chosen.assert_outcomes(passed=len(STATIC) + 1)


@pytest.mark.usefixtures("ckpt")
def test_a_directory_argument_that_holds_the_checkpoint_does_not_collect_it_twice(pytester):
    pytester.runpytest("ckpt", "--feature-contract", "ckpt").assert_outcomes(passed=len(STATIC))


@pytest.mark.parametrize("cache", [(), ("-p", "no:cacheprovider")], ids=["cache", "no-cache"])
@pytest.mark.usefixtures("ckpt")
def test_a_node_id_can_be_pasted(pytester, cache):
    node = "ckpt/feature_contract.json::predicted-sglang-0.5.12::slot-0"
    result = pytester.runpytest(node, "--feature-contract", "ckpt", *SGLANG, *cache)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["error FC304*"])
    other = pytester.runpytest(node.replace("slot-0", "slot-1"), "--feature-contract", "ckpt", *SGLANG, *cache)
    other.assert_outcomes(passed=1)


@pytest.mark.usefixtures("ckpt")
def test_a_contract_named_as_an_argument_is_collected_once(pytester):
    result = pytester.runpytest("./ckpt/feature_contract.json", "--feature-contract", "ckpt")
    result.assert_outcomes(passed=len(STATIC))


@pytest.mark.usefixtures("ckpt")
def test_k_selects_statements(pytester):
    result = pytester.runpytest("--feature-contract", "ckpt", *SGLANG, "-k", "slot-0 or schema")
    result.assert_outcomes(passed=1, failed=1, deselected=len(STATIC + PREDICTED) - 2)


@pytest.mark.usefixtures("ckpt")
def test_deselect(pytester):
    node = "ckpt/feature_contract.json::predicted-sglang-0.5.12"
    result = pytester.runpytest("--feature-contract", "ckpt", *SGLANG, "--deselect", node)
    result.assert_outcomes(passed=len(STATIC), deselected=5)


@pytest.mark.usefixtures("ckpt")
def test_x_stops_at_the_failing_slot(pytester):
    result = pytester.runpytest("--feature-contract", "ckpt", *SGLANG, "-x")
    result.assert_outcomes(passed=len(STATIC) + 1, failed=1)


@pytest.mark.usefixtures("ckpt")
def test_lf_runs_what_failed(pytester):
    pytester.makepyfile("def test_own(): assert False")
    pytester.runpytest("--feature-contract", "ckpt", *SGLANG).assert_outcomes(passed=11, failed=2)
    result = pytester.runpytest("--feature-contract", "ckpt", *SGLANG, "--lf")
    assert result.parseoutcomes()["failed"] == 2
    assert "passed" not in result.parseoutcomes()


@pytest.mark.usefixtures("ckpt")
def test_junitxml_has_one_testcase_for_each_item(pytester):
    pytester.runpytest("--feature-contract", "ckpt", *SGLANG, "--junitxml", "out.xml")
    suite = ET.fromstring((pytester.path / "out.xml").read_text("utf-8")).find("testsuite")  # noqa: S314 - our own
    cases = [(case.get("classname"), case.get("name")) for case in suite.iter("testcase")]
    assert len(cases) == len(set(cases)) == len(STATIC + PREDICTED)
    assert (suite.get("failures"), suite.get("errors")) == ("1", "0")
    (failure,) = suite.iter("failure")
    assert "FC304 embedding-missing" in failure.text


def test_several_checkpoints(pytester, kimi, collected):
    kimi(pytester.path / "a", features="3,31,59")
    kimi(pytester.path / "b" / "c")
    args = ("--feature-contract", "a", "--feature-contract", "b/c", *SGLANG)
    found = collected(pytester.runpytest(*args, "--collect-only", "-q"))
    assert [name.partition("/feature_contract.json::")[0] for name in found] == ["a"] * 12 + ["b/c"] * 12
    result = pytester.runpytest(*args)
    result.assert_outcomes(passed=23, failed=1)
    result.stdout.fnmatch_lines(["FAILED b/c/feature_contract.json::predicted-sglang-0.5.12::slot-0*"])


def test_the_same_checkpoint_twice_is_one(pytester, ckpt):
    result = pytester.runpytest("--feature-contract", "ckpt", "--feature-contract", str(ckpt / "feature_contract.json"))
    result.assert_outcomes(passed=len(STATIC))


@pytest.mark.parametrize("name", ["with space", "brackets[1]", "模型", "a::b", "percent%s"])
def test_a_name_with_other_characters_is_cleaned(pytester, kimi, collected, name):
    kimi(pytester.path / name)
    found = collected(pytester.runpytest("--feature-contract", name, *SGLANG, "--collect-only", "-q"))
    assert len(found) == len(STATIC + PREDICTED)
    for node in found:
        assert all(re.fullmatch(r"[A-Za-z0-9_.+-]+", part) for part in node.replace("::", "/").split("/"))
    result = pytester.runpytest("--feature-contract", name, *SGLANG, "--junitxml=o.xml")
    result.assert_outcomes(passed=11, failed=1)
    assert pytester.runpytest("--feature-contract", name, *SGLANG, "--lf").parseoutcomes()["failed"] == 1


def test_names_that_clean_to_the_same_stay_apart(pytester, kimi, collected):
    kimi(pytester.path / "a b")
    kimi(pytester.path / "a-b")
    found = collected(pytester.runpytest("--feature-contract=a b", "--feature-contract=a-b", "--collect-only", "-q"))
    assert len(set(found)) == 2 * len(STATIC)
    assert {name.partition("/")[0] for name in found} == {"a-b", "a-b-2"}


def test_a_checkpoint_outside_the_rootdir_has_its_absolute_path(pytester, kimi, tmp_path_factory, collected):
    outside = kimi(tmp_path_factory.mktemp("out side") / "ckpt")
    found = collected(pytester.runpytest(f"--feature-contract={outside}", "--collect-only", "-q"))
    where = re.sub(r"[^A-Za-z0-9_.+/-]", "-", outside.as_posix())
    assert found == [f"{where}/feature_contract.json::{name}" for name in STATIC]
    result = pytester.runpytest(f"--feature-contract={outside}", *SGLANG)
    result.assert_outcomes(passed=11, failed=1)


def test_a_rootdir_elsewhere(pytester, kimi, collected):
    kimi(pytester.path / "models" / "ckpt")
    args = ("--feature-contract", "models/ckpt", "--rootdir", "models", "--collect-only", "-q")
    assert collected(pytester.runpytest(*args)) == [f"ckpt/feature_contract.json::{name}" for name in STATIC]


def test_the_checkpoint_may_be_the_rootdir(pytester, kimi, collected):
    kimi(pytester.path)
    found = collected(pytester.runpytest("--feature-contract", ".", "--collect-only", "-q"))
    assert found == [f"feature_contract.json::{name}" for name in STATIC]


@pytest.mark.usefixtures("ckpt")
def test_a_path_that_is_not_there_is_a_usage_error_that_names_what_is(pytester):
    result = pytester.runpytest("--feature-contract", "ckpd")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --feature-contract: 'ckpd' does not exist; give the directory*; here: ckpt"])


def test_an_empty_path_is_a_usage_error(pytester):
    result = pytester.runpytest("--feature-contract", " ")
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_a_missing_contract_is_one_error_item(pytester, kimi, outcomes):
    kimi(pytester.path / "ckpt", features=None)
    result = pytester.runpytest("--feature-contract", "ckpt", *SGLANG, "-v")
    assert outcomes(result) == {"contract::schema": "ERROR"}
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["could not check (contract-missing): *feature_contract.json: there is no feature*"])
    result.stdout.no_fnmatch_line("*Traceback*")


@pytest.mark.parametrize(
    "fault",
    [
        ("feature_contract.json", b"{", "contract-invalid"),
        ("feature_contract.json", b'{"contract_version": "9.0"}', "contract-version"),
        ("feature_contract.json", b"\xff\xfe", "contract-invalid"),
        ("config.json", b"[]", "checkpoint-unreadable"),
        ("model.safetensors", b"1234", "checkpoint-unreadable"),
    ],
)
def test_a_broken_file_is_one_error_item_of_one_line(pytester, ckpt, outcomes, fault):
    file, content, slug = fault
    (ckpt / file).write_bytes(content)
    result = pytester.runpytest("--feature-contract", "ckpt", *SGLANG, "-v")
    assert outcomes(result) == {"contract::schema": "ERROR"}
    lines = [line for line in result.outlines if line.startswith("could not check")]
    assert len(lines) == 1
    assert lines[0].startswith(f"could not check ({slug}): {ckpt / file}")


def test_a_bad_runtime_in_the_contract_is_an_error_item(pytester, kimi, ckpt, outcomes):
    kimi.edit_contract(ckpt, serving={"runtimes": ["sglang=0.5.12"]})
    result = pytester.runpytest("--feature-contract", "ckpt", "-v")
    assert outcomes(result) == {"contract::schema": "ERROR"}


def test_a_checkpoint_without_tensors_errors_every_statement_about_them(pytester, ckpt, outcomes):
    (ckpt / "model.safetensors").unlink()
    found = outcomes(pytester.runpytest("--feature-contract", "ckpt", *SGLANG, "-v"))
    assert found.of("ERROR") == [
        "checkpoint::width",
        "checkpoint::tensor-fc.weight",
        "checkpoint::tensor-lm_head.weight",
    ]
    assert "checkpoint::vocab-map" not in found


def test_a_projection_of_another_width(pytester, kimi, ckpt, outcomes):
    kimi.write_sparse(ckpt / "model.safetensors", kimi.tensors(planes=4))
    result = pytester.runpytest("--feature-contract", "ckpt", *SGLANG, "-v", "-k", "not runtime")
    failed = outcomes(result).of("FAILED")
    assert failed == ["checkpoint::width", *(f"predicted-sglang-0.5.12::slot-{slot}" for slot in range(3))]
    assert result.stdout.str().count("fc.weight is [7168, 28672]") == 1
    assert result.stdout.str().count("see ckpt/feature_contract.json::checkpoint::width") == 3


def test_a_missing_tensor_and_a_changed_one(pytester, kimi, ckpt, outcomes):
    tensors = kimi.tensors()
    del tensors["fc.weight"]
    tensors["lm_head.weight"] = ("BF16", [640, 7168], None)
    kimi.write_sparse(ckpt / "model.safetensors", tensors)
    failed = outcomes(pytester.runpytest("--feature-contract", "ckpt", "-v")).of("FAILED")
    assert failed == ["checkpoint::width", "checkpoint::tensor-fc.weight", "checkpoint::tensor-lm_head.weight"]


def test_a_vocabulary_map_of_another_kind(pytester, kimi, ckpt, outcomes):
    kimi.edit_contract(ckpt, vocab={"d2t": "offset"})
    result = pytester.runpytest("--feature-contract", "ckpt", "-v")
    assert outcomes(result).of("FAILED") == ["checkpoint::vocab-map"]
    result.stdout.fnmatch_lines(["*the contract names a d2t, and the checkpoint has none*"])


def test_another_rope_fails_the_config_statement(pytester, kimi, ckpt, outcomes):
    (ckpt / "config.json").write_text(json.dumps(kimi.config(rope_theta=10000.0)))
    assert outcomes(pytester.runpytest("--feature-contract", "ckpt", "-v")).of("FAILED") == ["checkpoint::config"]


def test_formatting_alone_never_fails_the_digest(pytester, ckpt):
    file = ckpt / "feature_contract.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8"))))
    result = pytester.runpytest("--feature-contract", "ckpt", "-k", "digest", "-rP")
    result.assert_outcomes(passed=1, deselected=6)
    result.stdout.fnmatch_lines(["note: *feature_contract.json is not in canonical form*"])


@pytest.mark.usefixtures("ckpt")
def test_a_contract_that_changes_during_the_run_fails_the_digest(pytester, outcomes):
    pytester.makepyfile(
        """
        from pathlib import Path
        def test_writes():
            file = Path("ckpt/feature_contract.json")
            file.write_text(file.read_text().replace('"Kimi-K2.5"', '"Kimi-K9"'))
        """
    )
    result = pytester.runpytest("--feature-contract", "ckpt", "-v")
    assert outcomes(result).of("FAILED") == ["contract::digest"]
    result.stdout.fnmatch_lines(["*changed while the tests ran; run them again*"])


@pytest.mark.usefixtures("ckpt")
def test_tests_that_change_the_directory_do_no_harm(pytester):
    pytester.makepyfile("import os\ndef test_moves(tmp_path): os.chdir(tmp_path)")
    pytester.runpytest("--feature-contract", "ckpt", *SGLANG).assert_outcomes(passed=12, failed=1)


@pytest.mark.usefixtures("ckpt")
def test_the_check_runs_once_and_not_at_collection(pytester, monkeypatch):
    from featurecontract.plugin import _check

    calls = []
    original = _check.check_inputs
    monkeypatch.setattr(_check, "check_inputs", lambda *a, **k: calls.append(1) or original(*a, **k))
    pytester.inline_run("--feature-contract", "ckpt", *SGLANG, "--collect-only")
    assert calls == []
    pytester.inline_run("--feature-contract", "ckpt", *SGLANG)
    assert calls == [1]


def test_a_check_that_is_refused_late_errors_every_item(pytester, ckpt, outcomes, monkeypatch):
    from featurecontract.errors import InputError
    from featurecontract.plugin import _check

    def refuse(*_args, **_keywords):
        raise InputError.single(str(ckpt), "went away")

    monkeypatch.setattr(_check, "check_inputs", refuse)
    result = pytester.runpytest("--feature-contract", "ckpt", *SGLANG, "-v")
    assert outcomes(result).of("ERROR") == STATIC + PREDICTED
    assert result.stdout.str().count("went away") == 1


@pytest.mark.usefixtures("ckpt")
def test_quiet_and_collect_only_say_nothing_more(pytester):
    result = pytester.runpytest("--feature-contract", "ckpt", "--collect-only")
    result.stdout.no_fnmatch_line("*feature contracts*")
    result.stdout.fnmatch_lines(["*<CheckpointCollector ckpt/feature_contract.json>", "*<GroupCollector contract>"])
