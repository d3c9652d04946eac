"""Capture on a GPU: eager, CUDA graph, torch.compile; bfloat16 and an fc of Kimi-K2.5's size, in under 4 minutes.

`python -m benchmarks.gpu [--short]`; `--rehearse` walks through the eager and compiled parts on the CPU, tiny, to see
that they run. Without a GPU nothing is measured and the last line says so.

Beside the ratios it checks, for each way to run: the captured rows are exactly what entered the projection, the tags
are at the right calls, the outputs are the same with and without the tap, and no step waits for the device
(`torch.cuda.set_sync_debug_mode("error")`; a hook that did would leave its error in `Recording.failure`).
"""

from __future__ import annotations

import argparse
import contextlib
import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.decoder import Decoder, Shape
from benchmarks.intervals import Interval, interleaved, median_of
from benchmarks.table import print_report
from featurecontract.capture import Recording, Tap, capturing, tag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["main"]

#: fc [7168, 21504] as Kimi-K2.5's drafter has it, behind a target that is as wide and a tenth as deep.
KIMI = Shape(layers=6, width=7168, heads=56, kv_heads=8, inner=4096, vocabulary=32768, taps=(0, 3, 5))
TINY = Shape(layers=2, width=64, heads=4, kv_heads=2, inner=96, vocabulary=128, taps=(0, 1))
STEPS, SHORT_STEPS = 200, 50
CHECKED = 8

Way = Literal["eager", "eager_ring", "compiled", "compiled_ring", "graph"]
WAYS: tuple[Way, ...] = ("eager", "eager_ring", "compiled", "compiled_ring", "graph")


class Measured(NamedTuple):
    """One way to run: tapped over bare, milliseconds of the bare step, and what was checked."""

    ratio: Interval
    bare_ms: float
    exact: bool
    same_output: bool
    waits: bool
    note: str


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--short", action="store_true", help=f"{SHORT_STEPS} steps instead of {STEPS}")
    parser.add_argument("--rehearse", action="store_true", help="walk through on the CPU; the figures mean nothing")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available() and not options.rehearse:
        title = "There is no GPU here: the GPU benchmark has not been run"
        print_report(
            title, [("what", "measured", "budget", ""), ("capture on a GPU", "not run", "", "")], {"ran": False}
        )
        return
    device = torch.device("cpu" if options.rehearse else "cuda")
    steps = SHORT_STEPS if options.short or options.rehearse else STEPS
    start = time.perf_counter()
    torch.manual_seed(0)
    dtype = torch.float32 if options.rehearse else torch.bfloat16
    with device:
        model = Decoder(TINY if options.rehearse else KIMI).to(dtype).eval()
    ways = [way for way in WAYS if device.type == "cuda" or way != "graph"]
    measured = {way: measure(way, model, device, steps) for way in ways}
    figures: dict[str, Any] = {
        "ran": device.type == "cuda",
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "seconds": round(time.perf_counter() - start, 1),
        "step_over_bare": {way: round(found.ratio.median, 4) for way, found in measured.items()},
        "bare_ms": {way: round(found.bare_ms, 3) for way, found in measured.items()},
        "rows_exact": {way: found.exact for way, found in measured.items()},
        "same_output": {way: found.same_output for way, found in measured.items()},
        "waits_for_device": {way: found.waits for way, found in measured.items()},
        "notes": {way: found.note for way, found in measured.items() if found.note},
    }
    table: list[tuple[str, ...]] = [("way", "tapped over bare", "bare", "rows exact", "same output", "waits", "note")]
    for way, found in measured.items():
        words = ["yes" if value else "NO" for value in (found.exact, found.same_output)]
        waits = "YES" if found.waits else "no"
        table.append((way, str(found.ratio), f"{found.bare_ms:.3f} ms", *words, waits, found.note))
    width = model.fc.in_features
    print_report(f"Capture on {figures['device']}, {dtype}, fc of {width} columns, {steps} steps", table, figures)


@torch.inference_mode()
def measure(way: Way, model: Decoder, device: torch.device, steps: int) -> Measured:
    """Measure and check one way to run."""
    torch._dynamo.reset()  # noqa: SLF001 - has no public name
    torch._dynamo.utils.counters.clear()  # noqa: SLF001 - as above
    # Both sides run the same code; without guards on hooks the compiler would take one's graph for the other.
    torch._dynamo.config.skip_nnmodule_hook_guards = False  # noqa: SLF001 - as above
    before = model.fc
    bare_fc, tapped_fc = (_projection(before) for _ in range(2))
    token, position = torch.tensor([1], device=device), torch.tensor([5], device=device)
    graphs = way in ("graph", "compiled_ring")
    try:
        with capturing(Tap.module(tapped_fc), graphs=graphs or way == "eager_ring") as recording:
            # The tapped one is prepared first: a compiler takes the hooks that are there.
            tapped = prepare(way, model, tapped_fc, token, position)
            bare = prepare(way, model, bare_fc, token, position)
            expected = features(model, bare_fc, token, position)
            exact, same, waits = check(recording, tapped, bare, token, expected)
            recording.reset()
            seconds = interleaved({"tapped": _waiting(tapped, device), "bare": _waiting(bare, device)}, rounds=steps)
    finally:
        model.fc = before
    note = recording.failure
    skips = torch._dynamo.utils.counters["inductor"].get("cudagraph_skips", 0)  # noqa: SLF001 - as above
    if skips and way == "compiled_ring":
        note = f"{note} torch.compile gave up {skips} CUDA graphs".strip()
    pairs = zip(seconds["tapped"], seconds["bare"], strict=True)
    ratio = median_of([a / b for a, b in pairs])
    return Measured(ratio, median_of(seconds["bare"]).median * 1000, exact, same, waits, note)


def _projection(like: nn.Linear) -> nn.Linear:
    made = nn.Linear(1, 1, bias=False)
    made.weight = like.weight
    return made


def prepare(way: Way, model: Decoder, projection: nn.Linear, token: Tensor, position: Tensor) -> Callable[[], Tensor]:
    """Return a step that returns logits and projection side by side; warmed up, compiled or captured as asked."""

    def forward(token: Tensor, position: Tensor) -> Tensor:
        logits, projected = model(token, position)
        return torch.cat((logits, projected), dim=-1)

    model.fc = projection
    run: Callable[[Tensor, Tensor], Tensor] = forward
    if way.startswith("compiled"):
        ring = way == "compiled_ring" and token.is_cuda
        backend: dict[str, Any] = {"mode": "reduce-overhead"} if ring else {}
        if not token.is_cuda:
            backend = {"backend": "aot_eager"}
        run = torch.compile(forward, fullgraph=True, **backend)

    def step() -> Tensor:
        model.fc = projection
        return run(token, position)

    if way != "graph":
        for _ in range(3):
            step()
        return step
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = step()

    def replay() -> Tensor:
        graph.replay()
        return output

    return replay


def features(model: Decoder, projection: nn.Linear, token: Tensor, position: Tensor) -> list[Tensor]:
    """Return what enters the projection for the tokens 0, 1, ..., by a plain eager hook."""
    kept: list[Tensor] = []
    handle = projection.register_forward_pre_hook(lambda _module, args: kept.append(args[0].clone()))
    model.fc = projection
    for number in range(CHECKED):
        token.fill_(number)
        model(token, position)
    handle.remove()
    return [item.float().cpu() for item in kept]


def check(
    recording: Recording,
    tapped: Callable[[], Tensor],
    bare: Callable[[], Tensor],
    token: Tensor,
    expected: list[Tensor],
) -> tuple[bool, bool, bool]:
    """Return whether rows and tags are exact, outputs the same, and whether a step waited for the device."""
    recording.reset()
    outputs: list[Tensor] = []
    waits = False
    try:
        with _no_waiting(token):
            for number in range(CHECKED):
                with tag(token_ids=[number], phase="decode"):
                    token.fill_(number)
                    outputs.append(tapped().clone())
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        waits = True
    waits = waits or "synchroniz" in recording.failure
    capture = recording.capture()
    calls = [(call.token_ids, call.phase) for call in capture.calls]
    exact = calls == [((number,), "decode") for number in range(CHECKED)] and not capture.failure
    # A compiler may round elsewhere than eager kernels do; the eager and the graph way must agree to the last bit.
    loose = bool(torch._dynamo.utils.counters["frames"])  # noqa: SLF001 - as above
    for call, wanted in zip(capture.calls, expected, strict=False):
        close = (call.values - wanted).norm() < 0.02 * wanted.norm()
        exact = exact and (bool(close) if loose else torch.equal(call.values, wanted))
    same = len(outputs) == CHECKED
    for number, output in enumerate(outputs):
        token.fill_(number)
        same = same and torch.equal(output, bare())
    return exact, same, waits


@contextlib.contextmanager
def _no_waiting(token: Tensor) -> Iterator[None]:
    if not token.is_cuda:
        yield
        return
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _waiting(step: Callable[[], Tensor], device: torch.device) -> Callable[[], object]:
    def run() -> object:
        output = step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return output

    return run


if __name__ == "__main__":
    main()
