"""The V2 runner needs a GPU, so its hook is *not run* here: its names are held against the installed sources.

What this proves: the methods, arguments and fields that the hook uses are there, and the drafter's features go through
``combine_hidden_states`` inside of ``propose``. What it does not: that rows are right on a GPU.
"""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(importlib.util.find_spec("vllm").origin).parent / "v1/worker/gpu"
SPECULATORS = ["spec_decode/target_dependent_ar/speculator.py", "spec_decode/dflash/speculator.py"]


def parsed(path):
    return ast.parse((ROOT / path).read_text("utf-8"))


def function(tree, name):
    return next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name)


def called(node):
    return [ast.unparse(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)]


@pytest.mark.parametrize("path", SPECULATORS)
def test_propose_has_the_arguments_that_the_hook_reads(path):
    propose = function(parsed(path), "propose")
    names = {item.arg for item in propose.args.args + propose.args.kwonlyargs}
    assert {"input_batch", "num_rejected", "dummy_run", "is_profile", "aux_hidden_states"} <= names
    assert "self.model.combine_hidden_states" in called(propose)


def test_the_drafters_ids_are_prepared_before_the_hook_reads_them():
    order = called(function(parsed(SPECULATORS[0]), "propose"))
    ready, read, run = (order.index(n) for n in ("prepare_prefill_inputs", "self.on_prefill_begin", "self._prefill"))
    assert ready < read < run
    prepare = next(
        call
        for call in ast.walk(function(parsed(SPECULATORS[0]), "propose"))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "prepare_prefill_inputs"
    )
    assert "self.input_buffers" in [ast.unparse(argument) for argument in prepare.args]


def test_the_batch_has_the_fields_that_the_facts_come_from():
    (batch,) = [
        node for node in parsed("input_batch.py").body if isinstance(node, ast.ClassDef) and node.name == "InputBatch"
    ]
    fields = {node.target.id for node in batch.body if isinstance(node, ast.AnnAssign)}
    assert {
        "req_ids", "num_reqs", "num_tokens", "num_scheduled_tokens", "num_computed_tokens_np", "prefill_len_np",
        "query_start_loc", "input_ids", "positions",
    } <= fields  # fmt: skip


def test_the_runner_holds_its_speculator_where_the_hook_looks():
    text = (ROOT / "model_runner.py").read_text("utf-8")
    assert "self.speculator = init_speculator(" in text
    assert "self.speculator.propose(" in text


def test_the_worker_is_tapped_at_a_place_that_both_runners_pass():
    source = (ROOT.parent / "worker_base.py").read_text("utf-8")
    wrapper = next(
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef) and node.name == "WorkerWrapperBase"
    )
    assert "self.worker.initialize_from_config" in called(function(wrapper, "initialize_from_config"))
