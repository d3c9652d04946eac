"""`verify` with draft tokens: the report in every format, the options, and what cannot be compared."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from drafted_checkpoint import drafted, make  # noqa: E402
from tiny_runs import WIDTH  # noqa: E402

import featurecontract  # noqa: E402
from featurecontract.cli import main  # noqa: E402
from featurecontract.errors import InputError  # noqa: E402
from featurecontract.render import report_schema  # noqa: E402


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A drafter with a contract, the tiny target beside it, and features that its engine really fed."""
    return make(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def healthy(made):
    return drafted(made, made / "healthy")


@pytest.fixture(scope="module")
def faulty(made):
    return drafted(made, made / "faulty", post=True)


def test_a_healthy_capture_passes_and_says_what_was_compared(made, healthy):
    report = featurecontract.verify(made / "ckpt", [healthy], target=made / "target")
    assert [item for item in report.findings if item.severity != "note"] == []
    (found,) = report.drafted
    assert (found.rounds, found.compared, found.equal, found.reason) == (10, 20, 20, "")
    assert [(step.step, step.equal) for step in found.steps] == [(1, 10), (2, 10)]
    assert report.exit_status == 0
    without = featurecontract.verify(made / "ckpt", [healthy], target=made / "target", drafts=False)
    assert (without.drafted, without.compared) == ((), report.compared - 1)


def test_a_faulty_one_fails_with_its_class_and_cause(made, faulty):
    report = featurecontract.verify(made / "ckpt", [faulty], target=str(made / "target"))
    (item,) = [found for found in report.findings if found.severity == "error"]
    assert (item.slug, item.runtime) == ("draft-tokens-differ", "vllm==0.32.0 prefill")
    assert (item.details["step"], item.details["class"]) == (2, "recurrent state or position")
    assert item.details["explained_by"] == "the recurrent state post_norm"
    assert item.cause == "the runtime drafts 20 of 20 tokens with the recurrent state post_norm"
    command = f"featurecontract check {made / 'ckpt'} --target {made / 'target'} --runtime vllm==0.32.0"
    assert command in item.next_step
    assert report.exit_status == 1
    # The features themselves are right, and the report still says so.
    assert report.observed[0].wiring.boundaries == (0, 3, 6)


@pytest.mark.parametrize("fmt", ["text", "json", "markdown", "html", "github", "junit", "sarif"])
def test_every_format_says_it(made, faulty, fmt, capsys):
    if fmt == "html":
        pytest.importorskip("jinja2")
    arguments = ["verify", str(made / "ckpt"), faulty, "--target", str(made / "target"), "-o", fmt]
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 1
    out = capsys.readouterr().out
    assert "recurrent state" in out
    if fmt in ("text", "markdown", "html"):
        assert "10 of 20 draft tokens are what the weights draft" in out or "of 20 draft tokens" in out
    if fmt == "json":
        jsonschema = pytest.importorskip("jsonschema")
        found = json.loads(out)
        jsonschema.validate(found, report_schema())
        (entry,) = found["drafted"]
        assert (entry["compared"], entry["step"], entry["explained_by"]) == (20, 2, "the recurrent state post_norm")
        assert entry["steps"][0] == {"step": 1, "compared": 10, "equal": 10, "near_ties": 0, "differing": 0}


def test_without_a_target_a_shared_embedding_is_one_line_and_everything_else_goes_on(made, faulty, capsys):
    report = featurecontract.verify(made / "ckpt", [faulty])
    assert [item.slug for item in report.findings if item.severity == "error"] == []
    assert report.exit_status == 0
    assert report.drafted[0].reason == "the drafter shares the target's embedding: give --target DIR"
    with pytest.raises(SystemExit) as stop:
        main(["verify", str(made / "ckpt"), faulty])
    assert stop.value.code == 0
    assert "draft tokens not compared: the drafter shares" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        main(["verify", str(made / "ckpt"), faulty, "--no-drafts"])
    assert stop.value.code == 0
    assert "draft tokens" not in capsys.readouterr().out


def test_a_target_that_is_only_named_lends_nothing(made, faulty):
    found = featurecontract.load(made / "ckpt").target
    named = f"t:{found.num_hidden_layers},{WIDTH}"
    report = featurecontract.verify(made / "ckpt", [faulty], target=named)
    assert report.drafted[0].reason == "the drafter shares the target's embedding: give --target DIR"


def test_another_target_is_a_mismatch_and_nothing_is_drafted(made, faulty):
    report = featurecontract.verify(made / "ckpt", [faulty], target=f"t:99,{WIDTH}")
    assert "target-mismatch" in {item.slug for item in report.findings}
    assert report.drafted == ()
    assert report.exit_status == 1


def test_a_target_that_cannot_be_read_is_said(made, healthy, capsys):
    with pytest.raises(InputError):
        featurecontract.verify(made / "ckpt", [healthy], target=made / "nothing.json")
    with pytest.raises(SystemExit) as stop:
        main(["verify", str(made / "ckpt"), healthy, "--target", str(made / "nothing.json")])
    assert stop.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_contract_without_a_checkpoint_says_so(made, healthy, tmp_path):
    for name in ("feature_contract.json", "feature_contract.probe"):
        (tmp_path / name).write_bytes((made / "ckpt" / name).read_bytes())
    report = featurecontract.verify(tmp_path / "feature_contract.json", [healthy])
    assert report.drafted[0].reason == "the drafter's weights are not at hand"
    assert report.exit_status == 0


def test_a_capture_without_draft_tokens_says_so(made):
    report = featurecontract.verify(made / "ckpt", [made / "fed"], target=made / "target")
    assert report.drafted[0].reason == "the capture holds no draft tokens"
    assert report.exit_status == 0


def test_too_large_a_drafter_is_left_out(made, faulty, monkeypatch):
    from featurecontract.gate import _drafts

    monkeypatch.setattr(_drafts, "MAX_BYTES", 1000)
    report = featurecontract.verify(made / "ckpt", [faulty], target=made / "target")
    assert "GiB as float32" in report.drafted[0].reason
    assert report.exit_status == 0


@pytest.mark.parametrize("tensor", ["lm_head.weight", "norm.weight"])
def test_a_head_that_tells_no_token_from_another_is_no_pass(made, healthy, tmp_path, tensor):
    """Every token is a near tie of logits that are all equal."""
    import shutil

    from safetensors.torch import load_file, save_file

    shutil.copytree(made / "ckpt", tmp_path / "ckpt")
    tensors = load_file(tmp_path / "ckpt" / "model.safetensors")
    save_file(tensors | {tensor: torch.zeros_like(tensors[tensor])}, tmp_path / "ckpt" / "model.safetensors")
    report = featurecontract.verify(tmp_path / "ckpt", [healthy], target=made / "target")
    assert [item.slug for item in report.findings] == ["inconclusive"]
    assert "20 of 20 draft tokens" in report.findings[0].message
    assert report.exit_status == 2


def test_a_token_beyond_the_embedding_is_one_line(made, healthy, tmp_path):
    import shutil

    from safetensors.torch import load_file, save_file

    shutil.copytree(made / "target", tmp_path / "target")
    tensors = load_file(tmp_path / "target" / "model.safetensors")
    name = "model.embed_tokens.weight"
    save_file(tensors | {name: tensors[name][:150].contiguous()}, tmp_path / "target" / "model.safetensors")
    (found,) = featurecontract.verify(made / "ckpt", [healthy], target=tmp_path / "target").drafted
    assert found.differing == 0
    assert found.skipped["an id is outside of the target's vocabulary"] > 0


def test_a_config_whose_activation_is_a_list_is_one_line(made, healthy, tmp_path):
    import shutil

    shutil.copytree(made / "ckpt", tmp_path / "ckpt")
    config = json.loads((tmp_path / "ckpt" / "config.json").read_text())
    (tmp_path / "ckpt" / "config.json").write_text(json.dumps(config | {"hidden_act": ["silu"]}))
    (found,) = featurecontract.verify(tmp_path / "ckpt", [healthy], target=made / "target").drafted
    assert "hidden_act" in found.reason


def test_drafts_that_were_asked_for_and_cannot_be_compared_are_no_pass(made, healthy):
    # The drafter of `made` shares the target's embedding, and no target is given.
    for asked, status in ((None, 0), (True, 2), (False, 0)):
        report = featurecontract.verify(made / "ckpt", [healthy], drafts=asked)
        assert report.exit_status == status, asked
    assert featurecontract.verify(made / "ckpt", [healthy], target=made / "target", drafts=True).exit_status == 0
    with pytest.raises(SystemExit) as stop:
        main(["verify", str(made / "ckpt"), str(healthy), "--drafts"])
    assert stop.value.code == 2
