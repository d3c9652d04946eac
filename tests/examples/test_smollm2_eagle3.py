"""The example with a real drafter: its commands exist, its steps fail when they should, its small parts are right.

The whole of it runs in `make story-short`, with real speculators and real vLLM.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from featurecontract.cli import cli

ROOT = Path(__file__).parents[2]
HERE = ROOT / "examples" / "smollm2_eagle3"
SCRIPTS = ("record", "train", "serve", "compare", "story")


def load(name):
    spec = importlib.util.spec_from_file_location(f"smollm2_eagle3_{name}", HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def options_of(script):
    """Return the options that a script's parser takes, from its source: the libraries it imports are not here."""
    tree = ast.parse((HERE / f"{script}.py").read_text("utf-8"))
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("add_argument")
    ]
    return {node.args[0].value for node in calls if node.args[0].value.startswith("--")}


def assert_known(words):
    """Parse the words of one command as the real program would."""
    program, *rest = words
    if program == "featurecontract":
        command = cli.commands[rest[0]]
        command.make_context(rest[0], list(rest[1:]), resilient_parsing=True)
        known = {name for parameter in command.params for name in parameter.opts}
    elif program == "pytest":
        source = (ROOT / "featurecontract" / "pytest_plugin.py").read_text("utf-8")
        known = set(re.findall(r"--feature-contract[a-z-]*", source))
    else:
        assert program == "python", program
        known = options_of(Path(rest[0]).stem)
    given = {word.partition("=")[0] for word in rest if word.startswith("--")}
    assert given <= known, f"{shlex.join(words)}: {given - known}"


@pytest.mark.parametrize("size", ["FULL", "SHORT"])
def test_the_steps_are_commands_that_exist(size, monkeypatch, tmp_path):
    story = load("story")
    seen = []
    monkeypatch.setattr(
        story.Steps, "run", lambda _self, name, where, *words, **_how: seen.append((name, where, words))
    )
    monkeypatch.setattr(story, "edit", lambda *_where: None)
    monkeypatch.setattr(story.Steps, "require_findings", lambda *_what: None)
    steps = story.Steps(tmp_path, {"smollm2": "a", "speculators": "b", "vllm": "c"})
    size = getattr(story, size)
    story.train_and_replay(steps, size)
    for fault in size.faults:
        story.wrong(steps, size, fault)
    story.right(steps, size)
    story.compare(steps, size)
    names = [name for name, *_ in seen]
    assert len(names) == len(set(names))
    assert {"record", "train", "replay", "serve-fixed", "gate-fixed", "compare"} <= set(names)
    # One gate for each wrong config and one for the right one; the statuses are checked where they run.
    assert sum(name.startswith("gate-") for name in names) == len(size.faults) + 1
    assert any(name.startswith("live-") for name in names) == size.live
    for _, where, words in seen:
        assert_known(words)
        if words[0] == "python":
            assert Path(words[1]).is_file()
            wanted = {"train": "speculators", "serve": "vllm"}.get(Path(words[1]).stem, "smollm2")
            assert where == wanted


def test_the_readme_names_commands_that_exist():
    page = (HERE / "README.md").read_text("utf-8")
    commands = []
    for block in re.findall(r"```(?:console)?\n(.*?)```", page, re.DOTALL):
        joined = block.replace("\\\n", " ")
        commands += [
            shlex.split(line, comments=True)
            for line in joined.splitlines()
            if line.startswith(("python ", "featurecontract ", "pytest "))
        ]
    assert len(commands) >= 5
    for words in commands:
        assert_known(words)
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in re.findall(r"`make ([a-z-]+)`", page):
        assert f"\n{target}:" in makefile, target
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", page):
        assert (HERE / link).exists(), link
    assert all(f"{script}.py" in page for script in SCRIPTS)


def test_make_and_ci_run_it_with_options_that_exist():
    assert "make story-short" in (ROOT / ".ci" / "run").read_text("utf-8")
    makefile = (ROOT / "Makefile").read_text("utf-8")
    lines = re.findall(r"examples/smollm2_eagle3/story\.py.*", makefile)
    assert len(lines) == 2
    for line in lines:
        assert_known(["python", *line.split()])


@pytest.fixture
def steps(tmp_path):
    story = load("story")
    return story, story.Steps(tmp_path, {"here": sys.executable}), tmp_path


def test_a_step_runs_once_and_says_again_what_came_of_it(steps, capsys):
    story, run, out = steps
    script = "import pathlib; kept = pathlib.Path('n'); print('ran', kept.exists()); kept.touch()"
    for _ in range(2):
        assert run.run("one", "here", "python", "-c", script, says="ran").strip() == "ran False"
    assert capsys.readouterr().out.count("ran False") == 2
    kept = json.loads((out / "done" / "one.json").read_text())
    assert kept["status"] == 0
    with pytest.raises(story.Failed, match="of another run"):
        run.run("one", "here", "python", "-c", "print(2)")


@pytest.mark.parametrize(
    ("script", "how", "text"),
    [
        ("raise SystemExit(0)", {"expect": (1,)}, "exit status 0, expected 1"),
        ("raise SystemExit(2)", {"expect": (1,)}, "exit status 2, expected 1"),
        ("raise SystemExit(1)", {"expect": (1,), "says": "embedding-missing"}, "embedding-missing was expected"),
    ],
)
def test_a_step_that_does_not_come_out_ends_the_story_and_is_run_again(steps, script, how, text):
    story, run, out = steps
    for _ in range(2):
        with pytest.raises(story.Failed, match=text):
            run.run("one", "here", "python", "-c", script, **how)
    assert not (out / "done" / "one.json").exists()


def test_a_gate_must_find_exactly_what_is_told(steps):
    story, run, out = steps
    found = [{"slug": "embedding-missing", "severity": "error"}, {"slug": "probe-missing", "severity": "note"}]
    (out / "r.json").write_text(json.dumps({"findings": found}))
    run.require_findings("gate", "r.json", {"embedding-missing"})
    for wanted in (set(), {"layer-shift"}, {"embedding-missing", "layer-shift"}):
        with pytest.raises(story.Failed, match="found embedding-missing, not"):
            run.require_findings("gate", "r.json", wanted)


def test_a_config_is_edited_in_a_copy(tmp_path):
    story = load("story")
    (tmp_path / "trained").mkdir()
    (tmp_path / "trained" / "config.json").write_text(json.dumps({story.IDS: [0, 3, 16], "other": 1}))
    for name, ids in (("lost", None), ("other", [3, 16, 28])):
        story.edit(tmp_path / "trained", tmp_path / name, ids)
        config = json.loads((tmp_path / name / "config.json").read_text())
        assert config == {"other": 1} | ({} if ids is None else {story.IDS: ids})
    assert json.loads((tmp_path / "trained" / "config.json").read_text())[story.IDS] == [0, 3, 16]


def test_rounds_are_walked_as_a_server_takes_them():
    compare = load("compare")
    # Five prompt tokens (rows 0 to 4), eight generated (5 to 12). The round at row 4 accepts tokens 6 and 7 and brings
    # 8, that at row 7 accepts none and brings 9, that at row 8 accepts 10 and brings 11, that at row 10 brings 12.
    accepted = [3, 3, 3, 3, 2, 3, 3, 0, 1, 3, 0, 3, 0]
    assert compare.walk(accepted, first=4, drafts=3) == {"rounds": 4, "by_step": [2, 1, 0]}
    assert compare.walk([0] * 13, first=4, drafts=3) == {"rounds": 7, "by_step": [0, 0, 0]}
    found = compare.length([[2, 1, 0], [0, 0, 0]], [4, 7])
    assert found.value == pytest.approx(1 + 3 / 11)


def test_unseen_text_has_no_part_that_is_trained_on(monkeypatch):
    record = load("record")
    texts = [" ".join(f"{number}.{word}" for word in range(900 + 40 * number)) for number in range(30)]
    monkeypatch.setattr(record, "docstrings", lambda: iter([*texts, *texts[:5]]))
    options = argparse.Namespace(length=256, unseen=4, tokens=6000)

    def tokenizer(text):
        return {"input_ids": text.split()}

    unseen, train = record.parts_of(tokenizer, options)
    assert len(unseen) == 4
    assert 6000 <= sum(map(len, train)) < 6000 + 2200
    strings = [{token.partition(".")[0] for piece in part for token in piece} for part in (unseen, train)]
    assert len(strings[0]) == 4
    assert not strings[0] & strings[1]
    pieces = [tuple(piece) for piece in (*unseen, *train)]
    assert len(pieces) == len(set(pieces))
    assert record.parts_of(tokenizer, options) == (unseen, train)
