"""Taps: where they listen, what they take, and that the host never notices."""

from __future__ import annotations

import logging
import threading

import capture_models
import pytest
import torch
from capture_models import WIDTH, Drafter, Engine, Heir, rows
from torch import nn

from featurecontract.capture import Tap, capturing, load, tag
from featurecontract.contract import Contract, Feature, Target, digest, save
from featurecontract.contract import Drafter as DrafterFacts
from featurecontract.errors import UsageError

HOME = "capture_models:"


def values(recording):
    return [call.values.tolist() for call in recording.capture().calls]


def test_a_module_is_tapped_at_its_input():
    model, x = Drafter(), rows()
    with capturing(model.fc) as recording:
        model(x)
        model(x + 1)
    capture = recording.capture()
    assert values(recording) == [x.tolist(), (x + 1).tolist()]
    assert [(call.point, call.dtype, call.extra) for call in capture.calls] == [
        ("features", "float32", {"place": "Linear"})
    ] * 2
    assert (capture.failure, capture.dropped, capture.contract_sha256) == ("", 0, "")


def test_after_the_recording_nothing_is_left_in_the_module():
    model = Drafter()
    with capturing(model.fc) as recording:
        pass
    assert not model.fc._forward_pre_hooks
    model(rows())
    assert recording.capture().calls == ()


def test_the_recording_lets_go_when_the_host_raises():
    model = Drafter()
    with pytest.raises(RuntimeError), capturing(model.fc):
        model(torch.zeros(1, WIDTH + 1))
    assert not model.fc._forward_pre_hooks


def test_a_pattern_taps_every_match_in_call_order():
    model = nn.Sequential(Drafter(), nn.LayerNorm(2), nn.Linear(2, WIDTH), Drafter())
    with capturing(Tap.pattern(model, "*.fc", point="projection_input")) as recording:
        model(rows())
    assert [call.extra["place"] for call in recording.capture().calls] == ["0.fc", "3.fc"]
    assert {call.point for call in recording.capture().calls} == {"projection_input"}


def test_a_pattern_without_a_match_says_what_there_is():
    with pytest.raises(UsageError, match=r"no module matches '\*\.fcc' \(there are: fc, norm\)"):
        capturing(Tap.pattern(Drafter(), "*.fcc")).attach()


@pytest.mark.parametrize(
    ("path", "call", "expected"),
    [
        ("Engine.combine", lambda x: Engine().combine(x, scale=3.0), 3.0),
        ("Engine.combine", lambda x: Engine().combine(hidden_states=x), 1.0),
        ("Engine.combine", lambda x: Heir().combine(x), 1.0),
        ("Heir.combine", lambda x: Heir().combine(x), 1.0),
        ("Engine.still", lambda x: Engine.still(x) - 1, 1.0),
        ("Engine.still", lambda x: Engine().still(x) - 1, 1.0),
        ("Engine.classy", lambda x: Engine.classy(x) - 2, 1.0),
    ],
)
@pytest.mark.parametrize("argument", [0, "hidden_states"])
def test_an_argument_of_a_callable(path, call, expected, argument):
    x = rows()
    before = dict(vars(Engine)), dict(vars(Heir))
    with capturing(Tap.callable(HOME + path, argument=argument)) as recording:
        result = call(x)
    assert torch.equal(result, x * expected)
    assert values(recording) == [x.tolist()]
    assert (dict(vars(Engine)), dict(vars(Heir))) == before


def test_an_open_ended_argument_by_its_position():
    before = capture_models.function
    with capturing(Tap.callable(HOME + "function", argument=1)) as recording:
        capture_models.function(None, rows(1))
    assert values(recording) == [rows(1).tolist()]
    assert capture_models.function is before


def test_a_keyword_only_argument():
    with capturing(Tap.callable(HOME + "function", argument="hidden_states")) as recording:
        capture_models.function(hidden_states=rows(1))
    assert values(recording) == [rows(1).tolist()]


def test_two_taps_of_one_callable_both_hear_and_both_let_go():
    before = Engine.combine
    taps = [Tap.callable(HOME + "Engine.combine", point=point) for point in ("features", "recurrent")]
    with capturing(*taps) as recording:
        Engine().combine(rows(1))
    assert sorted(call.point for call in recording.capture().calls) == ["features", "recurrent"]
    assert Engine.combine is before


def test_what_somebody_wrapped_around_the_tap_stays(monkeypatch):
    monkeypatch.setattr(Engine, "combine", Engine.combine)
    with capturing(Tap.callable(HOME + "Engine.combine")) as recording:
        ours = Engine.combine
        Engine.combine = lambda self, x: ours(self, x) + 5
    assert torch.equal(Engine().combine(rows(1)), rows(1) + 5)
    assert recording.capture().calls == ()


@pytest.mark.parametrize(
    ("tap", "message"),
    [
        (lambda: Tap.callable("json"), "is not PACKAGE.MODULE:NAME"),
        (lambda: Tap.callable("no_such_module_here:x"), "cannot be found"),
        (lambda: Tap.callable(HOME + "Engine.absent"), "cannot be found"),
        (lambda: Tap.callable(HOME + "WIDTH"), "is no function, it is int"),
        (lambda: Tap.callable(HOME + "Engine.combine", argument="x"), r"arguments: hidden_states, scale"),
        (lambda: Tap.callable(HOME + "Engine.combine", argument=2), r"no argument 2"),
        (lambda: Tap.module(Drafter(), argument="x"), r"arguments: features"),
        (lambda: Tap.module(Drafter(), point="fc"), "no capture point 'fc'"),
        (lambda: Tap.module(Drafter(), shard=(2, 2)), "index below count"),
        (lambda: Tap.module("fc"), "needs a torch.nn.Module"),
    ],
)
def test_a_tap_of_nothing_is_said_at_once(tap, message):
    with pytest.raises(UsageError, match=message):
        capturing(tap()).attach()


@pytest.mark.parametrize("how", [{"max_rows": 0}, {"max_bytes": 0}, {"keep": "best"}])
def test_bounds_that_cannot_be_meant(how):
    with pytest.raises(UsageError):
        capturing(Drafter(), **how)


def test_nothing_to_tap():
    with pytest.raises(UsageError, match="nothing to tap"):
        capturing()


@pytest.mark.parametrize("graphs", [False, True])
def test_buffers_overwritten_later_do_not_reach_the_capture(graphs):
    model, buffer = Drafter(), rows()
    expected = buffer.tolist()
    with torch.no_grad(), capturing(Tap.module(model), graphs=graphs) as recording:
        model(buffer)
        buffer.fill_(-1)
    assert values(recording) == [expected]


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_host_computes_the_same_with_the_capture_on(graphs, dtype):
    model, x = Drafter().to(dtype), rows(32).to(dtype).requires_grad_()
    bare = model(x)
    with capturing(model.fc, graphs=graphs) as recording:
        tapped = model(x)
        tapped.sum().backward()
    assert torch.equal(bare, tapped)
    assert x.grad is not None
    assert [call.dtype for call in recording.capture().calls] == [str(dtype).removeprefix("torch.")]


@pytest.mark.parametrize("graphs", [False, True])
def test_inference_mode_and_odd_shapes(graphs):
    model = nn.Identity()
    with torch.inference_mode(), capturing(model, graphs=graphs) as recording:
        model(rows(4).reshape(2, 2, WIDTH))
        model(rows(4).T.contiguous().T)
        model(rows(1)[0])
        model(torch.zeros(0, WIDTH))
        model(rows(4)[::2])
    assert recording.capture().failure == ""
    assert values(recording) == [
        rows(4).tolist(), rows(4).tolist(), rows(1).tolist(), rows(4)[::2].tolist(),
    ]  # fmt: skip


@pytest.mark.parametrize("graphs", [False, True])
def test_nan_and_infinity_are_data(graphs):
    model = nn.Identity()
    x = torch.tensor([[float("nan"), float("inf"), -float("inf"), 1.0]])
    with capturing(model, graphs=graphs) as recording:
        model(x)
    assert torch.equal(recording.capture().calls[0].values, x) is False
    assert torch.equal(recording.capture().calls[0].values.nan_to_num(7), x.nan_to_num(7))


# --- failures stay ours ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.zeros(2, WIDTH, dtype=torch.int64), "has dtype int64, not a floating one"),
        (torch.tensor(1.0), "is a scalar"),
        (None, "is missing or None"),
        ([1.0], "is a list, not a plain tensor"),
    ],
)
def test_a_failing_hook_logs_once_and_lets_go(value, message, graphs, caplog):
    model = nn.Identity()
    with caplog.at_level(logging.WARNING), capturing(model, graphs=graphs) as recording:
        model(rows(1))
        assert model(value) is value
        model(value)
        model(rows(1))
        assert not model._forward_pre_hooks
        recording.resume()
        model(rows(1))
    assert message in recording.failure
    assert recording.failure == recording.capture().failure
    assert [record.name for record in caplog.records] == ["featurecontract.capture"]
    assert len(recording.capture().calls) == 1


@pytest.mark.parametrize("graphs", [False, True])
def test_whatever_goes_wrong_inside_stays_inside(graphs, monkeypatch):
    def explode(*_, **__):
        raise MemoryError("out of\nmemory " + "x" * 1000)

    monkeypatch.setattr("featurecontract.capture._site.Site._append", explode)
    monkeypatch.setattr("featurecontract.capture._ring.Ring.write", explode)
    monkeypatch.setattr("featurecontract.capture._recording._LOG", None)
    model = Drafter()
    with capturing(model.fc, graphs=graphs) as recording:
        assert torch.equal(model(rows()), Drafter()(rows()))
    assert recording.failure.startswith("Linear: MemoryError: out of memory xxx")
    assert len(recording.failure) == 400


def test_rows_of_another_width_in_a_ring_are_a_failure():
    model = nn.Identity()
    with capturing(model, graphs=True) as recording:
        model(rows(1))
        model(torch.zeros(1, WIDTH + 1))
    assert "rows changed from [6] torch.float32 on cpu to [7]" in recording.failure


def test_a_row_too_large_for_the_bytes():
    model = nn.Identity()
    with capturing(model, graphs=True, max_bytes=WIDTH * 4 - 1) as recording:
        model(rows(1))
    assert "holds no row of 6" in recording.failure


def test_a_missing_argument_is_a_failure():
    with capturing(Tap.callable(HOME + "Engine.combine", argument="scale")) as recording:
        Engine().combine(rows(1))
    assert "is missing or None" in recording.failure


# --- bounds ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("bound", [{"max_rows": 5}, {"max_rows": 99, "max_bytes": 5 * WIDTH * 4 + 3}])
def test_the_first_rows_are_kept_and_the_rest_counted(graphs, bound):
    model = nn.Identity()
    with capturing(model, graphs=graphs, **bound) as recording:
        for count in (2, 2, 3, 1, 1):
            model(rows(count, start=count))
    capture = recording.capture()
    assert [len(call.values) for call in capture.calls] == [2, 2, 1]
    assert [call.extra.get("rows_dropped") for call in capture.calls] == [None, None, 2]
    assert capture.calls[2].values.tolist() == rows(3, start=3)[:1].tolist()
    assert capture.dropped == 2


@pytest.mark.parametrize("graphs", [False, True])
def test_the_last_calls_are_kept_whole(graphs):
    model = nn.Identity()
    with capturing(model, graphs=graphs, max_rows=5, keep="last") as recording:
        for number, count in enumerate((2, 2, 3, 6, 1, 2)):
            model(rows(count, start=number))
    capture = recording.capture()
    assert [call.values.tolist() for call in capture.calls] == [rows(1, start=4).tolist(), rows(2, start=5).tolist()]
    assert capture.dropped == 4


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("keep", ["first", "last"])
def test_a_million_calls_take_no_more_than_the_bounds(graphs, keep):
    model, x = nn.Identity(), rows(1)
    with capturing(model, graphs=graphs, max_rows=16, keep=keep) as recording:
        for number in range(1000):
            with tag(token_ids=[number]):
                model(x)
    capture = recording.capture()
    assert capture.dropped == 984
    first = 0 if keep == "first" else 984
    assert [call.token_ids for call in capture.calls] == [(first + n,) for n in range(16)]
    assert len(recording._numbers) <= 32


@pytest.mark.parametrize("graphs", [False, True])
def test_reset_pause_and_resume(graphs):
    model = nn.Identity()
    with capturing(model, graphs=graphs) as recording:
        model(rows(1))
        recording.reset()
        model(rows(1, start=1))
        recording.pause()
        model(rows(1, start=2))
        recording.resume()
        model(rows(1, start=3))
    assert values(recording) == [rows(1, start=1).tolist(), rows(1, start=3).tolist()]


@pytest.mark.parametrize("graphs", [False, True])
def test_threads_lose_nothing(graphs):
    model = nn.Identity()
    with capturing(model, graphs=graphs, max_rows=400) as recording:
        threads = [threading.Thread(target=lambda: [model(rows(1)) for _ in range(50)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(recording.capture().calls) == 200


# --- what is said of the calls --------------------------------------------------------------------------------------


@pytest.mark.parametrize("graphs", [False, True])
def test_a_tag_holds_for_the_calls_inside(graphs):
    model = nn.Identity()
    with capturing(model, graphs=graphs, rank=1, stage=2, runtime="mine==1") as recording:
        model(rows(1))
        with tag(
            token_ids=torch.tensor([5, 6]),
            positions=[0, 1],
            requests=["a", 7],
            phase="prefill",
            accepted=[True, False],
            cached={7: 3},
            drafter_token_ids=(6, 8),
            rank=3,
            stage=4,
        ) as said:
            model(rows(2))
            said.update(draft_tokens=[9, 10, 11])
        model(rows(1))
    bare, call, after = recording.capture().calls
    assert (bare.token_ids, bare.rank, bare.stage, bare.phase) == (None, 1, 2, "")
    assert after.token_ids is None
    assert (call.token_ids, call.positions, call.requests) == ((5, 6), (0, 1), ("a", "7"))
    assert (call.phase, call.accepted, call.cached) == ("prefill", (True, False), {"7": 3})
    assert (call.drafter_token_ids, call.draft_tokens, call.rank, call.stage) == ((6, 8), (9, 10, 11), 3, 4)
    assert recording.capture().runtime == "mine==1"


@pytest.mark.parametrize("graphs", [False, True])
def test_a_tag_without_with_holds_until_the_next(graphs):
    model = nn.Identity()
    with capturing(model, graphs=graphs) as recording:
        tag(token_ids=[1], phase="prefill")
        model(rows(1))
        tag(phase="decode")
        model(rows(1))
        tag()
        model(rows(1))
    assert [(c.token_ids, c.phase) for c in recording.capture().calls] == [
        ((1,), "prefill"),
        (None, "decode"),
        (None, ""),
    ]


def test_a_tag_given_before_the_recording_holds_in_a_ring():
    model = nn.Identity()
    with tag(token_ids=[4]), capturing(model, graphs=True) as recording:
        model(rows(1))
    assert recording.capture().calls[0].token_ids == (4,)


def test_tensors_in_a_tag_are_cloned():
    model, ids = nn.Identity(), torch.tensor([1, 2])
    with capturing(model) as recording, tag(token_ids=ids):
        model(rows(2))
        ids.zero_()
    assert recording.capture().calls[0].token_ids == (1, 2)


@pytest.mark.parametrize("graphs", [False, True])
def test_rows_behind_the_tagged_ones_are_padding(graphs):
    model = nn.Identity()
    with capturing(model, graphs=graphs) as recording, tag(token_ids=[1, 2, 3], requests="a"):
        model(rows(8))
    (call,) = recording.capture().calls
    assert call.values.tolist() == rows(8)[:3].tolist()
    assert (call.token_ids, call.extra["padding_rows"]) == ((1, 2, 3), 5)


def test_one_label_stands_for_all_rows():
    model = nn.Identity()
    with capturing(model) as recording, tag(requests="a"):
        model(rows(2))
    assert recording.capture().calls[0].requests == ("a", "a")


def test_facts_that_do_not_fit_are_left_out_and_said():
    model = nn.Identity()
    with capturing(model) as recording, tag(token_ids=[1, 2, 3], positions=[0, 1]):
        model(rows(2))
    (call,) = recording.capture().calls
    assert (call.token_ids, call.positions) == (None, (0, 1))
    assert call.extra["facts_left_out"] == ["token_ids (3 for 2 rows)"]


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"token_ids": 5}, "token_ids"),
        ({"token_ids": ["a", "b"]}, "token_ids"),
        ({"token_ids": [2**63, 1]}, "token_ids"),
        ({"positions": [[0], [1]]}, "positions"),
        ({"positions": torch.tensor([0.5, 1.0])}, "positions"),
        ({"draft_tokens": "ab"}, "draft_tokens"),
        ({"cached": {"a": "b"}}, "cached"),
        ({"cached": 3}, "cached"),
        ({"rank": "one"}, "rank"),
    ],
)
def test_facts_that_cannot_be_used_are_left_out_and_said(tmp_path, given, name):
    model = nn.Identity()
    with capturing(model) as recording, tag(**given, phase="prefill"):
        model(rows(2))
    (call,) = load(recording.save(tmp_path))[0].calls
    assert call.values.tolist() == rows(2).tolist()
    assert call.phase == "prefill"
    assert len(call.extra["facts_left_out"]) == 1
    assert call.extra["facts_left_out"][0].startswith(f"{name} (not ")
    assert not getattr(call, name)


def test_labels_that_json_does_not_know(tmp_path):
    model = nn.Identity()
    with capturing(model) as recording, tag(requests=["\ud800", None], phase="x" * 999):
        model(rows(2))
    (call,) = load(recording.save(tmp_path))[0].calls
    assert (call.requests, len(call.phase)) == (("\\ud800", "None"), 200)


def test_a_tag_that_fails_stays_inside(monkeypatch):
    model = nn.Identity()
    with capturing(model, graphs=True) as recording:
        model(rows(1))
        monkeypatch.setattr(torch.Tensor, "fill_", None)
        with tag(token_ids=[1]):
            model(rows(1))
        monkeypatch.undo()
    assert recording.failure.startswith("tag: TypeError")


def test_facts_are_cut_with_the_rows():
    model = nn.Identity()
    with capturing(model, max_rows=2) as recording, tag(token_ids=[1, 2, 3]):
        model(rows(3))
    (call,) = recording.capture().calls
    assert (call.token_ids, call.extra["rows_dropped"]) == ((1, 2), 1)


def test_a_tag_of_an_unknown_field():
    with pytest.raises(TypeError, match="no field 'tokens'"):
        tag(tokens=[1])


def test_the_contract_is_bound(tmp_path):
    contract = Contract(
        name="d",
        method="eagle3",
        target=Target(num_hidden_layers=4, hidden_size=6),
        drafter=DrafterFacts(hidden_size=6),
        features=(Feature(slot=0, boundary=2, dim=6),),
    )
    model = nn.Identity()
    save(contract, tmp_path)
    for given in (contract, tmp_path, tmp_path / "feature_contract.json"):
        with capturing(model, contract=given) as recording:
            model(rows(1))
        assert recording.capture().contract_sha256 == digest(contract)
