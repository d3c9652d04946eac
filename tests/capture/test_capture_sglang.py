"""What can be held without SGLang: the plugin does nothing unasked, facts of batches, and hooks that never harm.

With SGLang itself: tests/real/sglang.
"""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from featurecontract.capture import _sglang_worker as around  # noqa: E402
from featurecontract.capture import load  # noqa: E402
from featurecontract.capture._sglang_facts import Progress, decode_facts, prefill_facts  # noqa: E402
from featurecontract.capture._sglang_fallback import Listener  # noqa: E402
from featurecontract.capture._sglang_model import drafter_of  # noqa: E402
from featurecontract.capture.sglang import HOOKS, forward_hook  # noqa: E402

WIDTH = 8


def request(name, tokens):
    return SimpleNamespace(rid=name, origin_input_ids=list(range(tokens)))


def extend(requests, before, counts):
    rows = sum(counts)
    return SimpleNamespace(reqs=requests, prefix_lens=before, extend_lens=counts, input_ids=torch.arange(rows))


def test_the_plugin_does_nothing_unasked():
    code = (
        "import sys; from featurecontract.capture.sglang import plugin; assert plugin() is None; "
        "print([name for name in ('torch', 'sglang', 'safetensors') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PATH": ""})
    assert done.stdout.strip() == "[]"


def test_the_hooks_are_functions_that_exist():
    assert all(callable(getattr(around, name)) for name in HOOKS.values())


def test_a_prefill_a_prefix_hit_a_batch_and_chunks_are_told_apart():
    progress = Progress()
    first = request("a", 5)
    assert prefill_facts(extend([first], [0], [5]), progress) | {"token_ids": None} == {
        "token_ids": None,
        "positions": [0, 1, 2, 3, 4],
        "requests": ["a"] * 5,
        "cached": {},
        "phase": "prefill",
    }
    hit = prefill_facts(extend([request("b", 5)], [3], [2]), progress)
    assert (hit["phase"], hit["positions"], hit["cached"]) == ("prefix-hit", [3, 4], {"b": 3})
    both = prefill_facts(extend([request("c", 2), request("d", 3)], [0, 1], [2, 2]), progress)
    assert (both["phase"], both["positions"], both["cached"]) == ("batch", [0, 1, 1, 2], {"d": 1})
    long = request("e", 9)
    parts = [prefill_facts(extend([long], [before], [count]), progress) for before, count in ((2, 3), (5, 4))]
    assert [part["phase"] for part in parts] == ["chunked-prefill"] * 2
    # The second chunk follows the first: only what was there before that one came from the cache.
    assert [part["cached"] for part in parts] == [{"e": 2}, {"e": 2}]


def test_a_request_that_starts_anew_is_no_chunk():
    progress = Progress()
    prefill_facts(extend([request("a", 5)], [0], [5]), progress)
    again = prefill_facts(extend([request("a", 5)], [4], [1]), progress)
    assert (again["phase"], again["cached"]) == ("prefix-hit", {"a": 4})


def test_accepted_rows_carry_the_committed_and_the_accepted_tokens():
    batch = SimpleNamespace(
        reqs=[request("a", 3), request("b", 3)],
        seq_lens=torch.tensor([10, 20]),
        spec_info=SimpleNamespace(draft_token=torch.tensor([7, 1, 2, 8, 3, 4])),
    )
    result = SimpleNamespace(next_token_ids=torch.tensor([1, 9, 0, 5, 0, 0]), accept_lens=torch.tensor([2, 1]))
    facts = decode_facts(batch, result, 3)
    assert facts["token_ids"].tolist() == [7, 1, 9, 8, 5, 0]
    assert facts["positions"].tolist() == [10, 11, 12, 20, 21, 22]
    assert facts["accepted"].tolist() == [True, True, False, True, False, False]
    assert facts["drafter_token_ids"].tolist() == [1, 9, 0, 5, 0, 0]
    assert (facts["requests"], facts["phase"]) == (["a"] * 3 + ["b"] * 3, "decode")


def test_without_the_draft_tree_the_tokens_are_not_guessed():
    batch = SimpleNamespace(reqs=[request("a", 3)], seq_lens=torch.tensor([10]), spec_info=None)
    result = SimpleNamespace(next_token_ids=torch.tensor([1, 2]), accept_lens=torch.tensor([1]))
    assert "token_ids" not in decode_facts(batch, result, 2)


class Mode:
    """A forward mode of the kind that the hooks ask."""

    def __init__(self, name):
        self.name = name

    def is_idle(self):
        return self.name == "idle"

    def is_decode_or_idle(self):
        return self.name in ("idle", "decode")

    def is_extend(self):
        return self.name in ("extend", "verify")

    def is_target_verify(self):
        return self.name == "verify"

    def is_draft_extend_v2(self):
        return self.name == "draft_extend"


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, _input_ids, _positions, forward_batch):
        hidden = forward_batch.spec_info.hidden_states
        return self.fc(hidden) if hidden.shape[1] != WIDTH else hidden


class Drafter(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = Body()


class Target(nn.Module):
    layers_to_capture = (5, 2, 4)


class DraftWorker:
    """The seam of SGLang's draft worker that the hooks stand around; its passes run a drafter of torch."""

    def __init__(self, model=None):
        self.draft_runner = SimpleNamespace(model=model or Drafter(), tp_rank=0, device="cpu")
        target = SimpleNamespace(
            model=Target(), spec_aux_config=SimpleNamespace(eagle_aux_hidden_state_layer_ids=[4, 1, 3])
        )
        self.target_worker = SimpleNamespace(model_runner=target)
        self.speculative_num_draft_tokens, self.speculative_num_steps, self.topk = 3, 2, 1
        self.hot_token_id = torch.tensor([100, 101, 102])

    def start(self):
        self.run(torch.ones(4, 3 * WIDTH), "extend")
        return "started"

    def run(self, hidden, mode):
        batch = SimpleNamespace(forward_mode=Mode(mode), spec_info=SimpleNamespace(hidden_states=hidden))
        return self.draft_runner.model.model(torch.arange(len(hidden)), None, batch)

    def prefill(self, batch, hidden):
        batch.input_ids = batch.input_ids + 1
        out = self.run(hidden, "extend")
        self.run(hidden[:1, :WIDTH], "decode")
        return SimpleNamespace(topk_index=torch.tensor([[2]]), out=out)


@pytest.fixture
def captured(tmp_path):
    around.configure(str(tmp_path), version="0.5.23")
    yield tmp_path
    around.configure(str(tmp_path), version="")


def files(directory):
    return [json.loads(path.read_text()) for path in directory.glob("capture-*.json")]


def batch_of(rows):
    batch = extend([request("a", rows)], [0], [rows])
    batch.forward_mode = Mode("extend")
    return batch


def test_a_prefill_is_captured_at_both_points_and_the_warm_up_is_not(captured):
    worker = DraftWorker()
    assert around.around_start(DraftWorker.start, worker) == "started"
    (first,) = files(captured)
    assert (first["calls"], first["failure"], first["runtime"]) == ([], "", "sglang==0.5.23")
    assert first["extra"]["resolved_ids"] == [4, 1, 3]
    assert first["extra"]["layers_to_capture"] == [5, 2, 4]
    hidden = torch.randn(6, 3 * WIDTH)
    result = around.around_prefill(DraftWorker.prefill, worker, batch_of(6), hidden)
    assert result.out.equal(worker.draft_runner.model.model.fc(hidden))
    around._Process.worker.flush()
    (capture,) = load(captured)
    assert [(call.point, tuple(call.values.shape)) for call in capture.calls] == [
        ("features", (6, 3 * WIDTH)),
        ("projection_input", (6, 3 * WIDTH)),
    ]
    for call in capture.calls:
        assert call.values.equal(hidden)
        assert (call.token_ids, call.drafter_token_ids) == ((0, 1, 2, 3, 4, 5), (1, 2, 3, 4, 5, 6))
        assert (call.positions, call.phase, call.draft_tokens) == ((0, 1, 2, 3, 4, 5), "prefill", (102,))


def test_draft_tokens_of_a_chain_are_added_to_the_pass_before(captured):
    worker = DraftWorker()
    around.around_start(DraftWorker.start, worker)
    around.around_prefill(DraftWorker.prefill, worker, batch_of(6), torch.randn(6, 3 * WIDTH))
    drafted = SimpleNamespace(draft_token=torch.tensor([9, 4, 5]))
    assert around.around_draft(lambda *_: drafted, worker, batch_of(6)) is drafted
    around._Process.worker.end()
    around._Process.worker.flush()
    assert {call.draft_tokens for call in load(captured)[0].calls} == {(4, 5)}


def test_a_chain_of_other_requests_is_not_that_passs(captured):
    """Of two requests that are decoded, one may have been prefilled last, or have ended."""
    worker = DraftWorker()
    around.around_start(DraftWorker.start, worker)
    around.around_prefill(DraftWorker.prefill, worker, batch_of(6), torch.randn(6, 3 * WIDTH))
    drafted = SimpleNamespace(draft_token=torch.tensor([9, 4, 5, 9, 6, 7]))
    both = SimpleNamespace(reqs=[request("b", 4), request("a", 6)])
    assert around.around_draft(lambda *_: drafted, worker, both) is drafted
    around._Process.worker.end()
    around._Process.worker.flush()
    (capture,) = load(captured)
    assert {call.draft_tokens for call in capture.calls} == {(102,)}
    assert capture.failure == ""


def test_only_the_worker_that_was_built_first_is_captured(captured):
    first, second = DraftWorker(), DraftWorker()
    for worker in (first, second):
        around.around_start(DraftWorker.start, worker)
    around.around_prefill(DraftWorker.prefill, second, batch_of(6), torch.randn(6, 3 * WIDTH))
    around._Process.worker.flush()
    assert [item["calls"] for item in files(captured)] == [[]]


def test_a_drafter_without_fc_is_served_and_the_file_says_why_nothing_is_captured(captured):
    model = Drafter()
    model.model.projection, model.model.fc = model.model.fc, None
    worker = DraftWorker(model)
    assert around.around_start(lambda _: "started", worker) == "started"
    assert around.around_prefill(lambda *_: "fed", worker, batch_of(4), None) == "fed"
    (left,) = files(captured)
    assert "no single module named fc" in left["failure"]


def test_a_batch_that_cannot_be_read_lets_go_and_the_server_goes_on(captured):
    worker = DraftWorker()
    around.around_start(DraftWorker.start, worker)
    broken = batch_of(4)
    broken.reqs = None
    hidden = torch.randn(4, 3 * WIDTH)
    for _ in range(2):
        assert around.around_prefill(DraftWorker.prefill, worker, broken, hidden).topk_index.tolist() == [[2]]
    (left,) = files(captured)
    assert left["failure"].startswith("prefill: TypeError")
    assert left["calls"] == []


def test_a_pass_that_fails_fails_as_it_would_without_us(captured):
    worker = DraftWorker()
    around.around_start(DraftWorker.start, worker)

    def fails(*_):
        raise ZeroDivisionError("the server's own")

    with pytest.raises(ZeroDivisionError, match="the server's own"):
        around.around_prefill(fails, worker, batch_of(4), None)
    assert around._Process.worker.recording.failure == ""
    around.around_prefill(DraftWorker.prefill, worker, batch_of(4), torch.randn(4, 3 * WIDTH))
    around._Process.worker.flush()
    assert len(load(captured)[0].calls) == 2


def test_an_idle_rank_feeds_nothing(captured):
    worker = DraftWorker()
    around.around_start(DraftWorker.start, worker)
    idle = batch_of(4)
    idle.forward_mode = Mode("idle")
    assert around.around_prefill(lambda *_: "idle", worker, idle, None) == "idle"
    assert files(captured)[0]["calls"] == []


def test_a_model_with_two_projections_is_not_guessed_at():
    model = nn.ModuleDict({"a": Body(), "b": Body()})
    with pytest.raises(LookupError, match=r"found: a\.fc, b\.fc"):
        drafter_of(model)


def test_forward_hooks_see_prefills_and_leave_verify_steps_out(tmp_path):
    hook = forward_hook({"directory": str(tmp_path)})
    assert forward_hook({"directory": str(tmp_path)}) is hook
    target, drafter = nn.Module(), Drafter()
    drafter.model.fc.register_forward_hook(hook)
    hidden = torch.randn(5, 3 * WIDTH)
    for mode in ("extend", "verify"):
        batch = SimpleNamespace(
            forward_mode=Mode(mode),
            rids=["a", "b"],
            extend_seq_lens_cpu=[3, 2],
            spec_info=SimpleNamespace(hidden_states=hidden),
        )
        ids, positions = torch.tensor([4, 5, 6, 7, 8]), torch.tensor([0, 1, 2, 0, 1])
        hook(target, (ids, positions, batch), None)
        drafter.model(ids + 1, positions, batch)
        hook(drafter.model, (ids + 1, positions, batch), None)
    hook._saver.flush()
    (capture,) = load(tmp_path)
    assert [call.point for call in capture.calls] == ["projection_input", "features"]
    for call in capture.calls:
        assert call.values.equal(hidden)
        assert (call.token_ids, call.requests) == ((4, 5, 6, 7, 8), ("a", "a", "a", "b", "b"))
        assert (call.drafter_token_ids, call.phase) == ((5, 6, 7, 8, 9), "prefill")


def test_forward_hooks_need_a_directory(monkeypatch):
    monkeypatch.delenv("FEATURECONTRACT_CAPTURE", raising=False)
    with pytest.raises(ValueError, match="directory"):
        forward_hook({})


def test_a_forward_hook_that_fails_lets_go(tmp_path):
    hook = Listener(str(tmp_path), version="", max_rows=None)
    assert hook(nn.Module(), (1, 2, None), None) is None
    assert hook.recording.failure.startswith("forward hook: AttributeError")
    hook(nn.Module(), (1, 2, None), None)
