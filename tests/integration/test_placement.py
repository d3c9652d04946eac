"""Where findings go: every rule of the catalogue has a statement, and none that could not be checked passes."""

from __future__ import annotations

import pytest

from featurecontract.contract import Contract, Drafter, Projection, Target, TensorRecord, Wiring
from featurecontract.findings import Predicted, Report, catalogue, finding
from featurecontract.plugin._names import part, unique
from featurecontract.plugin._placement import RuntimeName, homes, plan_statements

KEY = "sglang==0.5.12"
GROUP = "predicted-sglang-0.5.12"
WIRING = Wiring.from_boundaries((0, 3, 31), dim=8)
CONTRACT = Contract(
    name="c",
    method="eagle3",
    target=Target(num_hidden_layers=61, hidden_size=8),
    drafter=Drafter(hidden_size=8, tensors=(TensorRecord(name="d2t", dtype="I64", shape=(4,)),)),
    features=WIRING.features,
    projections=(Projection(tensor="fc.weight", role="fc", slots=(0, 1, 2), in_features=24, out_features=8),),
)


RUNTIMES = (RuntimeName(key=KEY, known=True, flags=True),)


def plan(*, serve_args=True, runtimes=RUNTIMES, strict=False):
    return plan_statements(CONTRACT, runtimes, readable=True, strict=strict, serve_args=serve_args)


def report(wiring=WIRING):
    return Report(checkpoint="c", declared=WIRING, predicted=(Predicted(runtime=KEY, wiring=wiring),))


@pytest.mark.parametrize("slug", [slug for slug in catalogue() if slug != "nothing-compared"])
@pytest.mark.parametrize("slots", [(), (0,), (0, 2), (7,)])
@pytest.mark.parametrize("runtime", [None, KEY, "elsewhere==1"])
@pytest.mark.parametrize("serve_args", [True, False])
def test_every_rule_has_a_statement_that_is_there(slug, slots, runtime, serve_args):
    laid_out = plan(serve_args=serve_args)
    for wiring in (WIRING, None):
        found = homes(laid_out, report(wiring), finding(slug, "m", runtime=runtime, slots=slots))
        assert found
        assert set(found) <= set(laid_out.addresses)
        assert list(found) == [item for item in laid_out.addresses if item in found]
        if runtime == KEY and set(slots) <= {0, 1, 2}:
            assert {f"{GROUP}::slot-{slot}" for slot in slots} <= set(found)


@pytest.mark.parametrize(
    ("slug", "fields", "expected"),
    [
        ("contract-invalid", {}, ["contract::schema"]),
        ("width", {}, ["checkpoint::width"]),
        ("vocab-map", {}, ["checkpoint::vocab-map"]),
        ("tensor-digest", {"details": {"tensor": "d2t"}}, ["checkpoint::tensor-d2t"]),
        ("tensor-unclaimed", {"details": {"tensor": "other"}}, ["checkpoint::config"]),
        ("rope", {}, ["checkpoint::config"]),
        ("layer-shift", {"runtime": KEY, "slots": (1, 2)}, [f"{GROUP}::slot-1", f"{GROUP}::slot-2"]),
        ("slot-extra", {"runtime": KEY, "slots": (3,)}, [f"{GROUP}::runtime"]),
        ("recurrent-state", {"runtime": KEY}, [f"{GROUP}::norms"]),
        ("norm-before-fc", {"runtime": KEY, "slots": (0,)}, [f"{GROUP}::slot-0", f"{GROUP}::norms"]),
        ("draft-tokens-forced", {"runtime": KEY}, [f"{GROUP}::serve-args"]),
        ("runtime-newer", {"runtime": KEY}, [f"{GROUP}::runtime"]),
        ("partial-sum", {"runtime": KEY}, [f"{GROUP}::runtime"]),
    ],
)
def test_the_statement_of_a_rule(slug, fields, expected):
    assert list(homes(plan(), report(), finding(slug, "m", **fields))) == expected


@pytest.mark.parametrize("slug", ["inconclusive", "runtime-unknown"])
def test_what_could_not_be_checked_lets_no_slot_pass(slug):
    found = homes(plan(), report(), finding(slug, "m", runtime=KEY))
    assert {f"{GROUP}::{name}" for name in ("runtime", "slot-0", "slot-1", "slot-2", "norms")} <= set(found)


def test_a_runtime_that_feeds_nothing_lets_no_slot_pass():
    found = homes(plan(), report(None), finding("method-unsupported", "m", runtime=KEY))
    assert len(found) == 5


def test_an_unreadable_checkpoint_lets_no_tensor_pass():
    found = homes(plan(), report(), finding("checkpoint-unreadable", "m"))
    assert found == tuple(item for item in plan().addresses if item.startswith("checkpoint::") and "config" not in item)


def test_nothing_compared_has_an_item_only_when_strict():
    found = finding("nothing-compared", "m")
    assert homes(plan(runtimes=()), report(), found) == ()
    assert homes(plan(runtimes=(), strict=True), report(), found) == ("predicted::runtime",)


def test_names_are_cleaned_and_stay_apart():
    assert part("a/b c[1]::模") == "a-b-c-1----"
    assert part("") == "-"
    assert unique("a", {"a", "a-2"}) == "a-3"
    keys = [RuntimeName(key=key, known=False, flags=False) for key in ("x y", "x-y")]
    assert [name for name in plan(runtimes=keys).groups if name.startswith("predicted")] == [
        "predicted-x-y",
        "predicted-x-y-2",
    ]
