"""`featurecontract replay` on stored states: figures, verdicts, the search, and what bad inputs end in."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file
from tiny_drafters import Tiny
from written_by import written_by

from featurecontract import contract as fc
from featurecontract.checkpoint import open_checkpoint
from featurecontract.cli import cli
from featurecontract.errors import FeatureContractError
from featurecontract.gate._replay_judge import judge_search, search_object
from featurecontract.replay import Comparison, Found, PlaneName, Ranked, read_drafter

TRUE = (PlaneName(0), PlaneName(2), PlaneName(5))
DEPTH, HIDDEN, VOCAB = 8, 32, 64
ALL = "embedding,1,2,3,4,5,6,7,8"


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A drafter, states of every boundary as speculators stores them, and a contract that names the trained wiring."""
    root = tmp_path_factory.mktemp("case")
    Tiny().write(root / "ckpt")
    drafter = read_drafter(open_checkpoint(root / "ckpt"))
    texts = written_by(drafter, TRUE, depth=DEPTH)
    write_states(root / "states", texts, [PlaneName(b) for b in range(DEPTH + 1)])
    write_states(root / "three", texts, [*TRUE, PlaneName(DEPTH)])
    (root / "target").mkdir()
    (root / "target" / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "num_hidden_layers": DEPTH,
                "hidden_size": HIDDEN,
                "vocab_size": VOCAB,
                "rms_norm_eps": 1e-5,
            }
        )
    )
    return root


def write_states(directory, texts, names):
    directory.mkdir()
    for number, text in enumerate(texts):
        planes = torch.stack([text.planes[name] for name in names], dim=1)
        save_file({"hidden_states": planes, "token_ids": text.token_ids}, directory / f"hs_{number}.safetensors")


@pytest.fixture
def with_contract(case):
    def write(features="0,2,5", quality=None):
        run("init", str(case / "ckpt"), "--target", str(case / "target"), "--features", features, "--force")
        if quality is not None:
            fc.save(replace(fc.load(case / "ckpt"), quality=quality), case / "ckpt")
        return case

    yield write
    (case / "ckpt" / fc.CONTRACT_FILE).unlink(missing_ok=True)


def run(*arguments, status=0):
    result = CliRunner().invoke(cli, list(arguments), standalone_mode=False)
    if isinstance(result.exception, FeatureContractError):
        assert status == 2, result.exception
        return str(result.exception)
    code = result.exception.code if isinstance(result.exception, SystemExit) else result.exit_code
    assert code == status, (code, result.output[-2000:], result.exception)
    return result.stdout


def replay(case, *arguments, states="states", status=0):
    return run("replay", str(case / "ckpt"), "--states", str(case / states), *arguments, status=status)


def as_json(*arguments, **keywords):
    return json.loads(replay(*arguments, "-o", "json", **keywords))


def slugs(report):
    return [item["slug"] for item in report["findings"]]


def test_the_declared_wiring_holds_against_others(with_contract):
    case = with_contract()
    report = as_json(case, "--planes", ALL, "--wiring", "2,5,8", "--wiring", "0,5,2")
    assert report["verdict"] == "pass"
    assert [item["declared"] for item in report["replayed"]] == [True, False, False]
    mine, late, swapped = (item["accuracy"][0]["value"] for item in report["replayed"])
    assert mine > 0.6
    assert max(late, swapped) < 0.4
    first = report["replayed"][0]
    assert [item["boundary"] for item in first["features"]] == [0, 2, 5]
    low, high = first["accuracy"][0]["interval"]
    assert low < first["accuracy"][0]["value"] < high
    assert first["acceptance_length"]["value"] > 1.6
    assert (first["sequences"], first["rows"]) == (16, 16 * 38)
    assert first["agreement"] is None


def test_figures_do_not_depend_on_the_batch(with_contract):
    case = with_contract()
    one, many = (as_json(case, "--planes", ALL, "--wiring", "2,5,8", "--batch-rows", rows) for rows in ("1", "9999"))
    assert one == many


def test_a_better_wiring_disagrees_with_the_contract(with_contract):
    case = with_contract("2,5,8")
    report = as_json(case, "--planes", ALL, "--wiring", "0,2,5", status=1)
    (found,) = [item for item in report["findings"] if item["slug"] == "wiring-disagrees"]
    assert [item["boundary"] for item in found["actual"]] == [0, 2, 5]
    assert "--features 0,2,5" in found["next_step"]


@pytest.mark.parametrize(("stated", "status"), [(0.7, 0), (0.95, 1), (0.3, 1)])
def test_the_contracts_quality_binds_on_both_sides(with_contract, stated, status):
    case = with_contract(quality=fc.Quality(step_accuracies=(stated,)))
    report = as_json(case, states="three", status=status)
    assert slugs(report) == ([] if status == 0 else ["accuracy-below"])
    if status:
        assert report["findings"][0]["details"]["above"] == (stated < 0.5)


def test_the_contracts_acceptance_length_binds(with_contract):
    case = with_contract(quality=fc.Quality(acceptance_length=3.9))
    assert slugs(as_json(case, states="three", status=1)) == ["accuracy-below"]


def test_figures_that_stand_alone_are_no_pass(with_contract):
    assert slugs(as_json(with_contract(), states="three", status=2)) == ["nothing-compared"]


def test_search_names_the_wiring_and_init_writes_it(case, tmp_path):
    file = tmp_path / "found.json"
    target = str(case / "target")
    replay(
        case,
        "--planes",
        ALL,
        "--target",
        target,
        "--search",
        "--confidence",
        "0.99",
        "-o",
        "json",
        "--output",
        str(file),
    )
    found = json.loads(file.read_text())["search"]
    assert found["wiring"] == "0,2,5"
    assert found["possible"] == 9 * 8 * 7
    assert 0 < found["full_replays"] < found["screened"] < found["possible"]
    assert found["margin"] > 3
    assert found["likelihood"] == "text"
    run("init", str(case / "ckpt"), "--target", target, "--from-search", str(file))
    written = fc.load(case / "ckpt")
    assert written.wiring.boundaries == (0, 2, 5)
    (statement,) = [item for item in written.provenance.statements if item.path == "features"]
    assert statement.source == "inferred"
    assert statement.confidence == pytest.approx(found["confidence"])
    assert "standard errors" in statement.reason
    (case / "ckpt" / fc.CONTRACT_FILE).unlink()


def test_search_against_a_contract(with_contract):
    case = with_contract("2,5,8")
    assert "wiring-disagrees" in slugs(as_json(case, "--planes", ALL, "--search", status=1))
    case = with_contract("0,2,5")
    assert slugs(as_json(case, "--planes", ALL, "--search")) == []


def test_a_winner_that_is_not_where_training_came_to_rest_is_inconclusive():
    pair = Comparison(difference=0.1, error=0.02, sequences=16, chance=1e-4)
    mine, other = (PlaneName(0), PlaneName(2), PlaneName(5)), (PlaneName(0), PlaneName(3), PlaneName(5))
    found = Found(
        ranking=(
            Ranked(wiring=mine, log_likelihood=-1.0, behind=None),
            Ranked(wiring=other, log_likelihood=-1.1, behind=pair),
        ),
        winner=None,
        tied=(mine, other),
        pulls=(other,),
        confidence=0.9999,
        margin=5.0,
        possible=504,
        screened=90,
        full_replays=2,
        tokens=2000,
        sequences=16,
        blind=pair,
        expected=True,
    )
    spec = SimpleNamespace(target_hidden_size=HIDDEN)
    inputs = SimpleNamespace(checkpoint=SimpleNamespace(tensors=None))
    run = SimpleNamespace(drafter=SimpleNamespace(spec=spec), inputs=inputs)
    (entry,), compared = judge_search(run, found, None)
    assert (entry.slug, compared) == ("inconclusive", 0)
    assert "between h[2] and h[3] in slot 1" in entry.message
    assert "do better still" in entry.message
    answer = search_object(run, found)
    assert (answer["winner"], answer["pulled_to"], answer["likelihood"]) == (None, ["0,3,5"], "target")
    assert answer["undecided"] == [{"slot": 1, "features": ["2", "3"]}]


def test_text_and_markdown_show_what_a_search_found(with_contract):
    case = with_contract("0,2,5")
    for form, cell in (("text", "  0,2,5"), ("markdown", "| `0,2,5` |")):
        shown = replay(case, "--planes", ALL, "--search", "-o", form)
        assert "0,2,5, " in shown
        assert "standard errors ahead of the runner-up, confidence 1.000" in shown
        assert "full replays" in shown
        assert "of 504 wirings scored" in shown
        assert cell in shown
    shown = replay(case, "--planes", ALL, "--search", "--confidence", "0.9999999999999", status=2)
    assert "no winner; the first is" in shown


def test_an_inconclusive_search_writes_nothing(with_contract, tmp_path):
    case = with_contract()
    file = tmp_path / "found.json"
    replay(
        case,
        "--planes",
        ALL,
        "--search",
        "--confidence",
        "0.9999999999999",
        "-o",
        "json",
        "--output",
        str(file),
        status=2,
    )
    report = json.loads(file.read_text())
    assert "inconclusive" in slugs(report)
    assert report["search"]["winner"] is None
    text = run(
        "init", str(case / "ckpt"), "--target", str(case / "target"), "--from-search", str(file), "--force", status=2
    )
    assert "named no winner" in text


def test_text_and_markdown_show_the_table(with_contract):
    case = with_contract()
    text = replay(case, "--planes", ALL, "--wiring", "2,5,8")
    assert "embedding, h[2], h[5] (declared)" in text
    assert "acceptance length" in text
    assert "|" in replay(case, "--planes", ALL, "--wiring", "2,5,8", "-o", "markdown")


def test_the_plot(with_contract, tmp_path):
    case = with_contract()
    assert "ends in .png or .svg" in replay(case, "--plot", str(tmp_path / "a.pdf"), states="three", status=2)
    pytest.importorskip("matplotlib", reason="the plot needs the extra `plot`")
    for name in ("a.png", "a.svg"):
        replay(case, "--planes", ALL, "--wiring", "2,5,8", "--plot", str(tmp_path / name))
        assert (tmp_path / name).stat().st_size > 1000


# --- what is no number ------------------------------------------------------------------------------------------


def test_wirings_that_cannot_be_replayed(with_contract):
    case = with_contract()
    for wiring, words in (
        ("0,2", "the drafter's projection takes 3"),
        ("0,2,9", "h[9] does not exist"),
        ("0,2,x", "is not a boundary"),
    ):
        assert words in replay(case, "--planes", ALL, "--wiring", wiring, status=2)
    assert "the states hold" in replay(case, "--wiring", "0,2,7", states="three", status=2)


def test_planes_that_do_not_fit_the_files(with_contract):
    case = with_contract()
    assert "name every plane" in replay(case, "--planes", "0,2", status=2)
    assert "each has one name" in replay(case, "--planes", "0,0,5", states="three", status=2)
    assert "holds 8 planes" in replay(case, status=2)


def copy_of(case, tmp_path, change=None, tensors=None):
    directory = tmp_path / "ckpt"
    config = json.loads((case / "ckpt" / "config.json").read_text()) | (change or {})
    weights = Tiny().tensors()
    for name, value in (tensors or {}).items():
        if value is None:
            del weights[name]
        else:
            weights[name] = value
    directory.mkdir()
    save_file(weights, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))
    return directory


BROKEN = {
    "missing norm": ({}, {"norm.weight": None}, "norm.weight: is missing"),
    "missing q_proj": ({}, {"midlayer.self_attn.q_proj.weight": None}, "no q_proj"),
    "missing input norm": ({}, {"midlayer.input_layernorm.weight": None}, "input_layernorm.weight: is missing"),
    "missing head": ({}, {"lm_head.weight": None}, "no lm_head.weight"),
    "missing embedding": ({}, {"embed_tokens.weight": None}, "no embed_tokens.weight"),
    "missing layer": (
        {},
        dict.fromkeys([n for n in Tiny().tensors() if n.startswith("midlayer")]),
        "has no|hold neither|no q_proj",
    ),
    "wide fc": ({}, {"fc.weight": torch.zeros(32, 100)}, "no whole number of planes"),
    "fc of another width": ({}, {"fc.weight": torch.zeros(16, 96)}, "fc.weight: is"),
    "wrong mlp": ({}, {"midlayer.mlp.down_proj.weight": torch.zeros(32, 50)}, "down_proj.weight: is"),
    "quantised": ({}, {"fc.weight": torch.zeros(32, 96, dtype=torch.int8)}, "plain floating-point"),
    "nan": ({}, {"fc.weight": torch.full((32, 96), float("nan"))}, "NaN"),
    "map leaves the vocabulary": ({}, {"d2t": torch.full((24,), 100), "t2d": None}, "cannot be used"),
    "map of another size": ({}, {"d2t": torch.arange(23)}, "cannot be used"),
    "no map": ({}, {"d2t": None, "t2d": None}, "cannot be used"),
    "heads": ({"num_attention_heads": 5}, {}, "do not divide"),
    "rope": ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, {}, "cannot be replayed"),
    "rope without factor": ({"rope_scaling": {"rope_type": "linear"}}, {}, "no usable factor"),
    "activation": ({"hidden_act": "xielu"}, {}, "is not replayed"),
    "gemma": ({"model_type": "gemma3_text"}, {}, "is not replayed"),
    "mla": ({}, {"midlayer.self_attn.kv_a_proj_with_mqa.weight": torch.zeros(8, 64)}, "MLA"),
    "two spellings": ({}, {"layers.0.hidden_norm.weight": torch.ones(32)}, "same part"),
    "eps": ({"rms_norm_eps": "small"}, {}, "small positive"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_checkpoint_that_cannot_be_replayed(case, tmp_path, name):
    change, tensors, words = BROKEN[name]
    directory = copy_of(case, tmp_path, change, tensors)
    arguments = [
        "--states",
        str(case / "three"),
        "--target",
        f"t:{DEPTH},{HIDDEN}",
        "--planes",
        "0,2,5",
        "--wiring",
        "0,2,5",
    ]
    text = run("replay", str(directory), *arguments, status=2)
    import re

    assert re.search(words, text), text
    assert "\n" not in text.strip()


def test_truncated_weights(case, tmp_path):
    directory = copy_of(case, tmp_path)
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    run("replay", str(directory), "--states", str(case / "three"), "--target", f"t:{DEPTH},{HIDDEN}", status=2)


def states_with(case, tmp_path, change):
    from safetensors.torch import load_file

    directory = tmp_path / "changed"
    directory.mkdir()
    for file in sorted((case / "three").iterdir()):
        content = change(load_file(file))
        save_file({name: value.contiguous() for name, value in content.items()}, directory / file.name)
    return directory


STATES = {
    "another width": (
        lambda c: {**c, "hidden_states": c["hidden_states"][:, :, :16]},
        "no whole number|wide, not|planes",
    ),
    "another vocabulary": (lambda c: {**c, "token_ids": c["token_ids"] + 60}, "does not exist in a vocabulary"),
    "fewer planes": (lambda c: {**c, "hidden_states": c["hidden_states"][:, :3]}, "holds 2 planes"),
    "other tokens": (lambda c: {**c, "token_ids": c["token_ids"][:-3]}, "."),
}


@pytest.mark.parametrize("name", STATES)
def test_states_of_another_target(with_contract, tmp_path, name):
    import re

    case = with_contract()
    change, words = STATES[name]
    directory = states_with(case, tmp_path, change)
    text = run("replay", str(case / "ckpt"), "--states", str(directory), "--wiring", "2,5,8", status=2)
    assert re.search(words, text), text


def test_states_that_are_code_truncated_or_absent(with_contract, tmp_path):
    case = with_contract()

    class Evil:
        def __reduce__(self):
            return (exec, ("raise SystemExit('ran')",))

    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "data_0.ckpt").write_bytes(pickle.dumps({"input_ids": Evil()}))
    run("replay", str(case / "ckpt"), "--states", str(tmp_path / "evil"), status=2)
    directory = states_with(case, tmp_path, dict)
    file = directory / "hs_9.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert "hs_9" in run("replay", str(case / "ckpt"), "--states", str(directory), status=2)
    run("replay", str(case / "ckpt"), "--states", str(tmp_path / "nowhere"), status=2)


def test_states_of_the_same_shape_and_another_target_lose_accuracy(with_contract, tmp_path):
    case = with_contract(quality=fc.Quality(step_accuracies=(0.7,)))
    g = torch.Generator().manual_seed(3)
    directory = states_with(
        case, tmp_path, lambda c: {**c, "hidden_states": torch.randn(c["hidden_states"].shape, generator=g)}
    )
    report = json.loads(run("replay", str(case / "ckpt"), "--states", str(directory), "-o", "json", status=1))
    assert slugs(report) == ["accuracy-below"]


@pytest.mark.parametrize("quality", [None, fc.Quality(step_accuracies=(0.7,)), fc.Quality(step_accuracies=(0.01,))])
def test_a_drafter_that_is_never_right_is_no_pass(with_contract, tmp_path, quality):
    case = with_contract(quality=quality)
    drafted = set((torch.arange(24) + Tiny().tensors()["d2t"]).tolist())
    never = min(set(range(VOCAB)) - drafted)

    def change(content):
        # The first two tokens are never drafted, and keep the sequences apart.
        ids = content["token_ids"]
        return {**content, "token_ids": torch.cat([ids[:2], torch.full_like(ids[2:], never)])}

    directory = states_with(case, tmp_path, change)
    report = json.loads(
        run("replay", str(case / "ckpt"), "--states", str(directory), "--wiring", "5,2,0", "-o", "json", status=1)
    )
    assert report["replayed"][0]["accuracy"][0]["value"] == 0
    assert sorted(slugs(report)) == ["accuracy-below", "inconclusive"]
    assert report["findings"][[*slugs(report)].index("accuracy-below")]["details"]["step"] == 1


@pytest.mark.parametrize("stated", [False, True])
def test_a_tie_with_another_wiring_is_could_not_check(with_contract, tmp_path, stated):
    """h[3] holds the same rows as h[2]: being as good as the other wiring proves nothing."""
    case = with_contract(quality=fc.Quality(step_accuracies=(0.7,)) if stated else None)
    directory = states_with(
        case,
        tmp_path,
        lambda c: {**c, "hidden_states": c["hidden_states"][:, [0, 1, 1, 2, 3]]},
    )
    arguments = ["--states", str(directory), "--planes", "0,2,3,5,8", "--wiring", "0,3,5", "-o", "json"]
    report = json.loads(run("replay", str(case / "ckpt"), *arguments, status=2))
    assert slugs(report) == ["inconclusive"]
    assert "cannot be told apart at step 1" in report["findings"][0]["message"]


def test_too_few_tokens(with_contract):
    case = with_contract(quality=fc.Quality(step_accuracies=(0.7,)))
    assert slugs(as_json(case, "--limit", "3", states="three", status=2)) == ["inconclusive"]
    assert "too few to rank on" in replay(case, "--planes", ALL, "--limit", "4", "--search", status=2)


def test_another_target_than_the_contracts(with_contract):
    case = with_contract()
    text = replay(case, "--target", f"t:{DEPTH + 1},{HIDDEN}", states="three", status=2)
    assert f"has {DEPTH + 1}" in text


def test_options_that_contradict_each_other(with_contract):
    case = with_contract()
    assert "needs --states DIR" in run("replay", str(case / "ckpt"), status=2)
    assert "needs something to read" in run("replay", str(case / "ckpt"), "--target", "x", status=2)
    assert "brings its own tokens" in replay(case, "--text", "x", status=2)
