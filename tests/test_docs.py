"""The docs are true: commands run as written, every command, option and rule is documented, pages are up to date."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from featurecontract.cli import cli
from featurecontract.findings import catalogue
from featurecontract.runtimes import NAMES

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def consoles(page):
    """Return the console blocks of a page, each as (command, expected exit status) lines."""
    for block in re.findall(r"```console\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
        yield from (_command(line) for line in block.splitlines() if line.startswith("$ "))


def _command(line):
    found = re.search(r"  # exit (\d)$", line)
    return (line[2:] if not found else line[2 : found.start()]), (int(found[1]) if found else 0)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_run_as_written(page, tmp_path):
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    scripts = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    for command, expected in consoles(page):
        words = shlex.split(command)
        assert words[0] in ("featurecontract", "python", "pytest", "cp"), command
        done = subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == expected, f"{command}\n{done.stdout}\n{done.stderr}"


def test_the_readme_has_commands():
    assert len(list(consoles(ROOT / "README.md"))) >= 10


def test_every_command_and_option_is_documented():
    page = (ROOT / "docs" / "commands.md").read_text("utf-8")
    for name, command in cli.commands.items():
        assert f"## {name}" in page, name
        section = (
            page.split(f"## {name}")[1].split("\n## ")[0] + page.split("## Options that several")[1].split("\n## ")[0]
        )
        for parameter in command.params:
            for option in (item for item in parameter.opts if item.startswith("-")):
                assert f"`{option}" in section or f"{option}`" in section or f"{option} " in section, (name, option)


def test_every_pytest_option_is_documented():
    source = (ROOT / "featurecontract" / "pytest_plugin.py").read_text("utf-8")
    page = (ROOT / "docs" / "pytest.md").read_text("utf-8")
    options = set(re.findall(r"--feature-contract[a-z-]*", source))
    assert options
    for option in options:
        assert option in page, option


def test_every_rule_and_runtime_is_documented():
    rules = (ROOT / "docs" / "rules.md").read_text("utf-8")
    for rule in catalogue().values():
        assert f"{rule.rule}" in rules
        assert rule.slug in rules
    runtimes = (ROOT / "docs" / "runtimes.md").read_text("utf-8")
    assert all(f"## {name}\n" in runtimes for name in NAMES)


def test_the_runtimes_page_is_up_to_date():
    spec = importlib.util.spec_from_file_location("make_runtimes", ROOT / "docs" / "make_runtimes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text("utf-8") == module.page(), "run python docs/make_runtimes.py"


def test_the_compatibility_page_is_up_to_date():
    spec = importlib.util.spec_from_file_location("make_compatibility", ROOT / "docs" / "make_compatibility.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    results = json.loads((ROOT / "docs" / "compatibility.json").read_text("utf-8"))
    assert module.PAGE.read_text("utf-8") == module.page(results), "run python docs/make_compatibility.py"
    # A pair whose outcome is another than the known one must not be published as a row like any other.
    assert {item["status"] for item in results} <= {"as known", "not run"}


def test_every_rule_format_key_is_documented():
    from featurecontract.runtimes import rules_schema

    page = (ROOT / "docs" / "rule-format.md").read_text("utf-8")
    schema = rules_schema()
    for name, definition in {"": schema, **schema["$defs"]}.items():
        for key in definition["properties"]:
            assert f"`{key}`" in page, (name, key)


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_nothing_of_this_machine_is_in_the_tree():
    git = shutil.which("git")
    assert git
    done = subprocess.run([git, "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = done.stdout.splitlines()
    words = re.compile(r"/(?:work|farm|root)/|\.\./sha" + "red|/opt/wh" + "eels|bash_" + "jobs")
    for name in listed:
        path = ROOT / name
        if path.is_file() and path.suffix in (".py", ".md", ".json", ".toml", ".sh", ".txt", "", ".yaml"):
            found = words.search(path.read_text("utf-8", "replace"))
            assert not found, f"{name}: {found[0] if found else ''}"
            assert path.stat().st_size < 1_500_000
