"""torch.compile: the tap is one operator in one graph, and keeps what the eager hook keeps."""

from __future__ import annotations

import capture_models
import pytest
import torch
from capture_models import Drafter, Engine, rows
from torch import nn

from featurecontract.capture import Tap, capturing, tag
from featurecontract.capture._operator import tap_operator


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function, backend="aot_eager"):
    return torch.compile(function, fullgraph=True, backend=backend)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own
def test_a_compiled_model_is_captured_in_one_graph(backend, graphs):
    model, x = Drafter(), rows()
    with torch.no_grad(), capturing(model.fc, graphs=graphs) as recording:
        run = compiled(model, backend)
        bare = Drafter()
        for number in range(3):
            with tag(token_ids=[number] * 4):
                assert torch.allclose(run(x + number), bare(x + number), atol=1e-6)
    capture = recording.capture()
    assert [call.values.tolist() for call in capture.calls] == [(x + number).tolist() for number in range(3)]
    assert [call.token_ids for call in capture.calls] == [(number,) * 4 for number in range(3)]
    assert capture.failure == ""


@pytest.mark.parametrize("graphs", [False, True])
def test_the_output_is_the_same_with_the_tap_compiled_in(graphs):
    bare = compiled(Drafter())(rows())
    torch._dynamo.reset()
    model = Drafter()
    with capturing(model.fc, graphs=graphs):
        tapped = compiled(model)(rows())
    assert torch.equal(bare, tapped)


def test_gradients_pass():
    model, x = Drafter(), rows().requires_grad_()
    with capturing(model.fc) as recording:
        compiled(model)(x).sum().backward()
    assert x.grad is not None
    assert len(recording.capture().calls) == 1


def test_dynamic_shapes():
    model = Drafter()
    with torch.no_grad(), capturing(model.fc) as recording:
        run = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
        for count in (2, 3, 5, 8):
            run(rows(count))
    assert [len(call.values) for call in recording.capture().calls] == [2, 3, 5, 8]


def test_a_buffer_overwritten_inside_of_the_graph():
    class Overwrites(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Identity()

        def forward(self, buffer):
            out = self.fc(buffer) * 2
            buffer.fill_(-1)
            return out

    model, buffer = Overwrites(), rows()
    with torch.no_grad(), capturing(model.fc) as recording:
        compiled(model)(buffer)
    assert buffer[0, 0] == -1
    assert recording.capture().calls[0].values.tolist() == rows().tolist()


@pytest.mark.parametrize("engine", [Engine(), None])
def test_a_tapped_callable_is_traced(engine):
    def step(x):
        return (engine or Engine()).combine(x, scale=2.0) + 1

    with torch.no_grad(), capturing(Tap.callable("capture_models:Engine.combine")) as recording:
        assert torch.equal(compiled(step)(rows()), rows() * 2 + 1)
    assert recording.capture().calls[0].values.tolist() == rows().tolist()
    assert capture_models.Engine is Engine


def test_after_the_recording_the_compiled_graph_runs_on():
    model = Drafter()
    with torch.no_grad():
        with capturing(model.fc) as recording:
            run = compiled(model)
            run(rows())
        kept = len(recording.capture().calls)
        assert torch.equal(run(rows()), Drafter()(rows()))
        assert len(recording.capture().calls) == kept == 1
        del recording
        assert torch.equal(run(rows()), Drafter()(rows()))


def test_a_failure_inside_of_a_compiled_graph_stays_inside(caplog):
    model = nn.Sequential(nn.Identity())
    with capturing(model[0]) as recording:
        run = compiled(model)
        value = torch.ones(2, dtype=torch.int64)
        assert torch.equal(run(value), value)
    assert "has dtype int64" in recording.failure
    assert [r.name for r in caplog.records if r.levelname == "WARNING"] == ["featurecontract.capture"]


def test_a_tap_on_a_model_compiled_and_run_before_hears_nothing():
    """The documented limit: the compiler took the module without its hooks."""
    model = Drafter()
    run = compiled(model)
    run(rows())
    with capturing(model.fc) as recording:
        run(rows())
    assert recording.capture().calls == ()


def test_with_guards_on_hooks_a_compiled_model_can_be_tapped_later():
    model = Drafter()
    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=False):
        run = compiled(model)
        run(rows())
        with capturing(model.fc) as recording:
            run(rows())
    assert len(recording.capture().calls) == 1


def test_the_compiled_model_itself_can_be_tapped_later():
    run = compiled(Drafter())
    run(rows())
    with capturing(Tap.module(run)) as recording:
        run(rows())
    assert len(recording.capture().calls) == 1


def test_a_pattern_sees_through_the_compiled_wrapper():
    run = compiled(Drafter())
    with capturing(Tap.pattern(run, "fc")) as recording:
        run(rows())
    assert [call.extra["place"] for call in recording.capture().calls] == ["fc"]


def test_the_operator_keeps_the_rules_of_custom_operators():
    with capturing(nn.Identity()) as recording:
        site = recording._sites[0]
        torch.library.opcheck(tap_operator, (rows(), site.counter, site.number))
    assert recording.failure == ""


def test_the_operator_of_a_site_that_is_gone_does_nothing():
    torch.ops.featurecontract.tap(rows(), torch.zeros(1, dtype=torch.int64), -1)
