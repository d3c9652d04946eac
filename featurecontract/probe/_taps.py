"""Hooks on a target: one forward pass over the probe's tokens gives every plane.

``output_hidden_states`` is not used: its last entry is after the final norm, some models leave entries out, and none
has what lies between attention and MLP. Boundary b is what *enters* layer b, taken by a hook in front of it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from featurecontract.errors import InputError
from featurecontract.probe._block import Trace, explain_block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from featurecontract.probe._layout import Layout

__all__ = ["Tapped", "tap"]

# A layer's own parts and theirs; the experts of a mixture stand deeper and are not watched.
_DEPTH = 2
_MAX_PARTS = 64


@dataclass(slots=True, eq=False)
class Tapped:
    """What one pass showed; every tensor is float32 ``[rows, width]`` on the CPU.

    Attributes:
        boundaries: h[0]..h[L], in the order of the calls; a looped target counts every pass.
        streams: Residual streams that a row of ``width`` holds side by side, 1 for nearly all.
        mid: By b, the residual after attention inside layer b, where it was proved.
        mlp: By b, the last summand of h[b], where it was proved.
        normed: norm(h[L]) as the model computed it.
        embedded: What the embedding module gave, None if it was not seen.
        logits: The model's own logits ``[rows, vocab]``, None if it gave none.
        dtype: The dtype of h[L].
        between: Boundaries that are not what the layer before them gave out.
    """

    boundaries: list[Tensor] = field(default_factory=list)
    streams: int = 1
    mid: dict[int, Tensor] = field(default_factory=dict)
    mlp: dict[int, Tensor] = field(default_factory=dict)
    normed: Tensor | None = None
    embedded: Tensor | None = None
    logits: Tensor | None = None
    dtype: torch.dtype = torch.float32
    between: list[int] = field(default_factory=list)


def tap(
    model: nn.Module,
    layout: Layout,
    token_ids: Tensor,
    *,
    blocks: bool = True,
    forward: Callable[[nn.Module, Tensor], Any] | None = None,
) -> Tapped:
    """Run the target once and return its planes.

    Args:
        model: The target; it is put into eval mode for the pass and back.
        layout: Where its parts are.
        token_ids: int64 ``[batch, rows]``; what is returned is of the first sequence.
        blocks: Look inside the layers too.
        forward: How to run it, for a model that is not called with a tensor of ids.

    Raises:
        InputError: the layers or the norm did not run, or their tensors have an unknown form.
    """
    watch = _Watch(token_ids.shape[0], token_ids.shape[1])
    with contextlib.ExitStack() as stack:
        stack.enter_context(_evaluating(model))
        stack.enter_context(torch.no_grad())
        for handle in watch.install(layout, blocks=blocks):
            stack.callback(handle.remove)
        output = (forward or partial(_call, layout=layout))(model, token_ids)
    return watch.finish(output)


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _call(model: nn.Module, token_ids: Tensor, *, layout: Layout) -> Any:
    place = layout.embedding if layout.embedding is not None else model
    device = next((p.device for p in place.parameters() if p.device.type != "meta"), torch.device("cpu"))
    ids = token_ids.to(device)
    if hasattr(model, "config"):
        return model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
    return model(ids)


class _Watch:
    """The hooks of one pass and what they saw."""

    def __init__(self, batch: int, rows: int) -> None:
        self.batch, self.rows = batch, rows
        self.width = 0
        self.seen = Tapped()
        self.trace: Trace | None = None
        self.left: Tensor | None = None
        self.calls = 0

    def install(self, layout: Layout, *, blocks: bool) -> Iterator[Any]:
        for layer in dict.fromkeys(layout.layers):
            yield layer.register_forward_pre_hook(partial(self._enter, blocks=blocks), with_kwargs=True)
            yield layer.register_forward_hook(self._leave)
            for name, part in _parts(layer) if blocks else ():
                yield part.register_forward_pre_hook(partial(self._into, name), with_kwargs=True)
                yield part.register_forward_hook(partial(self._out_of, name))
        yield layout.norm.register_forward_pre_hook(self._enter_norm, with_kwargs=True)
        yield layout.norm.register_forward_hook(self._leave_norm)
        if layout.embedding is not None:
            yield layout.embedding.register_forward_hook(self._embedded)

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, blocks: bool) -> None:
        entry = self._boundary(_first(args, kwargs), type(module).__name__)
        if self.left is not None and not torch.equal(entry, self.left):
            self.seen.between.append(self.calls)
        self.seen.boundaries.append(entry)
        self.calls += 1
        self.trace = Trace() if blocks else None

    def _leave(self, module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        tensor = _first_of(output)
        self.left = self._boundary(tensor, type(module).__name__)
        trace, self.trace = self.trace, None
        if trace is None:
            return
        entry = self.seen.boundaries[-1]
        eps = float(torch.finfo(tensor.dtype).eps) if tensor is not None else 0.0
        found = explain_block(entry, self.left, trace, eps=eps)
        if found is None:
            return
        if found.mid is not None:
            self.seen.mid[self.calls - 1] = found.mid
        self.seen.mlp[self.calls] = found.mlp

    def _into(self, name: str, _module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        rows = self._rows(_first(args, kwargs))
        if self.trace is not None and rows is not None:
            self.trace.inputs.append((name, rows))

    def _out_of(self, name: str, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        if self.trace is None:
            return
        for tensor in output if isinstance(output, tuple) else (output,):
            rows = self._rows(tensor)
            if rows is not None:
                self.trace.outputs.append((name, rows))

    def _enter_norm(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        # A module may be called before the layers too; only what comes behind the last one is the final norm.
        if not self.calls:
            return
        tensor = _first(args, kwargs)
        last = self._boundary(tensor, type(module).__name__)
        if len(self.seen.boundaries) > self.calls:
            return
        if self.left is not None and not torch.equal(last, self.left):
            self.seen.between.append(self.calls)
        self.seen.boundaries.append(last)
        self.seen.dtype = tensor.dtype if tensor is not None else torch.float32

    def _leave_norm(self, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        if len(self.seen.boundaries) > self.calls and self.seen.normed is None:
            self.seen.normed = self._rows(_first_of(output))

    def _embedded(self, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        tensor = _first_of(output)
        if not self.calls and tensor is not None and tensor.dim() > 1:
            width, self.width = self.width, tensor.shape[-1]
            self.seen.embedded = self._rows(tensor)
            self.width = width

    def _boundary(self, tensor: Tensor | None, where: str) -> Tensor:
        if not self.width and tensor is not None:
            self.width, self.seen.streams = self._widths(tensor)
        rows = self._rows(tensor)
        if rows is None:
            shape = list(tensor.shape) if tensor is not None else None
            raise InputError.single(
                where,
                f"was called with {shape}, not with {self.rows} rows of a residual stream",
                next_step="name the list of decoder layers with --layers, and the final norm with --norm",
                slug="probe-degenerate",
            )
        return rows

    def _widths(self, tensor: Tensor) -> tuple[int, int]:
        """Return columns per row, and how many streams they are: ``[batch, rows, streams, hidden]`` has several."""
        streams = tensor.shape[2] if tensor.dim() == 4 and tensor.shape[:2] == (self.batch, self.rows) else 1  # noqa: PLR2004
        return tensor.shape[-1] * streams, streams

    def _rows(self, tensor: Any) -> Tensor | None:
        """Return the first sequence's rows ``[rows, width]``, or None for a tensor of another form."""
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or not self.width:
            return None
        batch, rows, width = self.batch, self.rows, self.width
        if tensor.numel() != batch * rows * width or tensor.dim() > 4:  # noqa: PLR2004
            return None
        shape = tuple(tensor.shape)
        if shape[:2] == (batch, rows) and tensor[0].numel() == rows * width:
            found = tensor[0].reshape(rows, width)
        elif shape in ((batch * rows, width), (batch * rows, 1, width)):
            found = tensor.reshape(batch, rows, width)[0]
        elif shape == (rows, batch, width):
            found = tensor[:, 0]
        else:
            return None
        return found.detach().to("cpu", torch.float32, copy=True).contiguous()

    def finish(self, output: Any) -> Tapped:
        if not self.calls or len(self.seen.boundaries) == self.calls:
            what = "the decoder layers were" if not self.calls else "the final norm behind the layers was"
            raise InputError.single(
                "the target",
                f"{what} not called by a forward pass",
                next_step="name them with --layers and --norm",
                slug="probe-degenerate",
            )
        # Between a layer and the next boundary something else was added: the layer's last summand is not h[b]'s.
        for boundary in self.seen.between:
            self.seen.mlp.pop(boundary, None)
        self.seen.logits = self._logits(output)
        return self.seen

    def _logits(self, output: Any) -> Tensor | None:
        logits = getattr(output, "logits", None)
        if logits is None:
            logits = _first_of(output)
        if not isinstance(logits, Tensor) or not logits.is_floating_point():
            return None
        if logits.dim() == 3 and logits.shape[:2] == (self.batch, self.rows):  # noqa: PLR2004
            return logits[0].detach().to("cpu", torch.float32)
        if logits.dim() == 2 and self.batch == 1 and logits.shape[0] == self.rows:  # noqa: PLR2004
            return logits.detach().to("cpu", torch.float32)
        return None


def _parts(layer: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(n, m) for n, m in layer.named_modules() if n and n.count(".") < _DEPTH][:_MAX_PARTS]


def _first(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    for value in (*args, kwargs.get("hidden_states"), *kwargs.values()):
        if isinstance(value, Tensor) and value.is_floating_point():
            return value
    return None


def _first_of(output: Any) -> Tensor | None:
    values = output if isinstance(output, tuple | list) else (output,)
    return next((item for item in values if isinstance(item, Tensor) and item.is_floating_point()), None)
