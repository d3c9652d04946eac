"""What imports what: dependencies point one way, and nothing heavy is loaded before it is needed."""

from __future__ import annotations

import ast
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "featurecontract"
SOURCES = sorted(PACKAGE.rglob("*.py"))

BELOW = (
    "errors _version contract checkpoint findings dialects runtimes serving render probe capture identify states replay"
)
# Part -> the parts of the package that it may import; each line may name only parts that stand above it.
ALLOWED = {
    "errors": "",
    "_version": "",
    "contract": "errors",
    "checkpoint": "errors contract",
    "findings": "errors contract",
    "dialects": "errors contract findings",
    "runtimes": "errors contract findings dialects",
    "serving": "errors contract findings runtimes",
    "render": "errors _version contract findings",
    "probe": "errors _version contract checkpoint findings",
    "capture": "errors _version contract checkpoint findings probe",
    "identify": "errors contract findings probe capture",
    "states": "errors contract checkpoint findings probe capture identify",
    "replay": "errors contract checkpoint findings dialects runtimes probe capture identify states",
    "gate": BELOW,
    "live": "errors contract checkpoint findings runtimes probe capture identify gate",
    "trainers": f"{BELOW} gate",
    "strategies": "errors contract findings dialects runtimes probe capture identify",
    "plugin": f"{BELOW} gate live strategies",
    "pytest_plugin": "errors contract findings gate plugin",
    "cli": f"{BELOW} gate live",
    "__main__": "cli",
    "__init__": "_version contract findings probe replay gate",
}
# Library -> where it may be imported; an entry with `()` only inside of a function, so that it costs on use only.
LIBRARIES = {
    "torch": (
        "probe",
        "capture",
        "identify",
        "states",
        "replay",
        "checkpoint/_pickle.py()",
        "strategies.py()",
        "live()",
        "trainers()",
    ),
    "numpy": ("probe", "capture", "identify", "states", "replay"),
    "safetensors": ("probe", "capture", "states", "replay"),
    "transformers": ("probe", "capture", "replay", "live()"),
    "vllm": ("capture", "live/vllm_engine.py()"),
    "sglang": ("capture", *(f"live/{name}.py()" for name in ("sglang_engine", "_sglang_force", "_sglang_phases"))),
    "pytest": ("plugin", "pytest_plugin.py"),
    "hypothesis": ("strategies.py", "plugin()"),
    "jsonschema": ("contract()", "gate()"),
    "rich": ("render()", "cli()"),
    "click": ("cli",),
    "jinja2": ("render()",),
    "matplotlib": ("render/_plot.py()",),
    "yaml": ("serving()",),
    "packaging": ("runtimes()",),
}
HEAVY = ("torch", "numpy", "jsonschema", "hypothesis", "rich", "safetensors", "jinja2", "yaml", "transformers")


class Import(NamedTuple):
    """One import statement of one name."""

    path: str  # relative to the package, with /
    module: str  # dotted
    lazy: bool  # inside of a function
    typing: bool  # under `if TYPE_CHECKING`


def imports_of(path: Path):
    """Yield every import of a file, wherever it stands."""
    waiting = [(ast.parse(path.read_text("utf-8")), False, False)]
    while waiting:
        node, lazy, typing = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (Import(shown(path), alias.name, lazy, typing) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide who depends on whom"
            names = [alias.name for alias in node.names] if node.module == "featurecontract" else [""]
            for name in names:
                yield Import(shown(path), f"{node.module}.{name}".rstrip("."), lazy, typing)
        lazy = lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            guarded = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and child in node.body
            waiting.append((child, lazy, typing or guarded))


def shown(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


IMPORTS = [found for path in SOURCES for found in imports_of(path)]


def part_of(path: str) -> str:
    return path.split("/", maxsplit=1)[0].removesuffix(".py")


def test_the_scan_sees_imports():
    assert Import("contract/_decode.py", "featurecontract.errors", lazy=False, typing=False) in IMPORTS
    assert any(item.lazy and item.module == "torch" for item in IMPORTS)
    assert any(item.typing for item in IMPORTS)


def test_the_table_itself_points_one_way():
    above: set[str] = set()
    for part, allowed in ALLOWED.items():
        assert set(allowed.split()) <= above, f"{part} names a part that stands below it"
        above.add(part)


@pytest.mark.parametrize("part", sorted({part_of(shown(path)) for path in SOURCES}))
def test_dependencies_point_one_way(part):
    assert part in ALLOWED, "a new part of the package needs its line in the table"
    allowed = {part, *ALLOWED[part].split()}
    for found in IMPORTS:
        names = found.module.split(".")
        if part_of(found.path) == part and names[0] == "featurecontract" and len(names) > 1:
            assert names[1] in allowed, f"{found.path} imports {found.module}"


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_is_imported_only_where_it_belongs(library):
    for found in IMPORTS:
        if found.module.split(".")[0] != library or found.typing:
            continue
        places = (found.path, found.path.split("/")[0])
        anywhere = any(place in LIBRARIES[library] for place in places)
        inside = found.lazy and any(f"{place}()" in LIBRARIES[library] for place in places)
        assert anywhere or inside, f"{found.path} imports {found.module}{'' if found.lazy else ' at import time'}"


def test_only_libraries_that_the_table_knows():
    known = {"featurecontract", "__future__", *sys.stdlib_module_names, *LIBRARIES}
    assert {found.module.split(".")[0] for found in IMPORTS if not found.typing} <= known


# --- in a fresh process -------------------------------------------------------------------------------------------


def loaded_after(code: str, *arguments: str) -> set[str]:
    """Return the names in sys.modules after running code in a process of its own."""
    script = f"import json, sys\n{code}\nsys.stderr.write('\\n' + json.dumps(sorted(sys.modules)))"
    command = [sys.executable, "-c", script, *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert finished.returncode == 0, finished.stderr[-2000:]
    return set(json.loads(finished.stderr.rpartition("\n")[2]))


def test_importing_the_package_imports_nothing_else():
    loaded = loaded_after("import featurecontract")
    assert loaded.isdisjoint((*HEAVY, "click", "pytest", "packaging"))
    assert {name for name in loaded if name.startswith("featurecontract")} == {
        "featurecontract",
        "featurecontract._version",
    }


def test_the_public_names_import_nothing_heavy():
    loaded = loaded_after(
        "import featurecontract as f\nf.load, f.save, f.Contract, f.Wiring, f.Feature, f.diff, f.predict"
    )
    assert "featurecontract.gate" in loaded
    assert loaded.isdisjoint((*HEAVY, "click", "pytest"))


def test_the_unused_plugin_imports_nothing_else():
    loaded = loaded_after("import pytest\nbefore = set(sys.modules)\nimport featurecontract.pytest_plugin")
    assert loaded.isdisjoint((*HEAVY, "click"))
    assert {name for name in loaded if name.startswith("featurecontract.")} == {
        "featurecontract._version",
        "featurecontract.pytest_plugin",
    }


def test_a_session_that_does_not_use_the_plugin_pays_for_nothing(tmp_path):
    (tmp_path / "test_other.py").write_text(
        "import json, sys\n"
        "def test_nothing():\n"
        "    loaded = sorted(n for n in sys.modules if n.startswith('featurecontract'))\n"
        "    assert loaded == ['featurecontract', 'featurecontract._version', 'featurecontract.pytest_plugin']\n"
        f"    assert not set({list(HEAVY)!r}) & set(sys.modules)\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "."]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path)
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-2000:]


@pytest.mark.parametrize("fmt", ["text", "json", "junit", "sarif", "github", "markdown"])
def test_a_check_imports_nothing_heavy(tmp_path, fmt):
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": 8,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 58]},
    }
    contract = {
        "contract_version": "1.0",
        "name": "d",
        "method": "eagle3",
        "target": {"num_hidden_layers": 61, "hidden_size": 8},
        "drafter": {"hidden_size": 8},
        "features": [{"slot": slot, "boundary": b, "dim": 8} for slot, b in enumerate((0, 3, 31))],
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "feature_contract.json").write_text(json.dumps(contract))
    code = (
        "from featurecontract.cli import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "except SystemExit as end:\n    assert end.code == 1, end.code"
    )
    target = "t:61,8,KimiK25ForConditionalGeneration"
    loaded = loaded_after(code, "check", str(tmp_path), "--target", target, "--runtime", "sglang==0.5.12", "-o", fmt)
    assert loaded.isdisjoint((*HEAVY, "pytest"))


# --- shape of the tree --------------------------------------------------------------------------------------------

TREE = sorted(p for folder in ("featurecontract", "tests", "benchmarks", "docs") for p in (ROOT / folder).rglob("*.py"))


def test_files_are_small():
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in TREE}
    assert {path.name: length for path, length in lengths.items() if length > 500} == {}
    package = [length for path, length in lengths.items() if path in SOURCES and path.name != "__init__.py"]
    assert statistics.median(package) <= 170


def test_modules_are_named_for_what_they_hold():
    vague = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}
    assert [path for path in TREE if path.stem.strip("_") in vague] == []
