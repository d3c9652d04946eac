"""Norm and bias flags, as a runtime reads them; a flag that it does not read is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurecontract.contract import Wiring
from featurecontract.dialects import lookup

if TYPE_CHECKING:
    from collections.abc import Mapping

    from featurecontract.contract import Feature
    from featurecontract.runtimes._query import Case

__all__ = ["apply_flags"]

# Every place where a published config was seen to state a flag.
_FLAG_PLACES: Mapping[str, tuple[str, ...]] = {
    "norm_before_fc": ("norm_before_fc", "eagle_config.norm_before_fc"),
    "fc_norm": ("fc_norm", "use_aux_norm", "eagle_config.fc_norm"),
    "norm_output": ("norm_output", "eagle_config.norm_output", "eagle_config.return_hidden_post_norm"),
    "norm_before_residual": ("norm_before_residual", "eagle_config.norm_before_residual"),
    "bias": ("bias", "eagle_config.bias"),
}


def apply_flags(case: Case, features: tuple[Feature, ...]) -> tuple[Wiring, tuple[str, ...], tuple[str, ...]]:
    """Return the wiring with its flags, the flags that are set and not read, and the trace."""
    config = case.query.config
    values: dict[str, bool] = {}
    unread: list[str] = []
    steps: list[str] = []
    for name, places in _FLAG_PLACES.items():
        rule = case.first(tuple(item for item in case.rules.flags if item.flag == name))
        stated = next((v for path in places if isinstance(v := lookup(config, path)[1], bool)), None)
        if rule is None:
            continue
        read = next((v for path in rule.paths if isinstance(v := lookup(config, path)[1], bool)), None)
        values[name] = rule.default if read is None else read
        if stated and read is None and not values[name]:
            unread.append(name)
            where = f"only at {', '.join(rule.paths)}" if rule.paths else "nowhere"
            steps.append(f"{name} is set in the config, and read {where}")
    pre_norm = "unknown"
    if "norm_before_fc" in values or "fc_norm" in values:
        joint, each = values.get("norm_before_fc"), values.get("fc_norm")
        pre_norm = "per_feature" if each else "joint" if joint else "none"
    recurrent = "unknown"
    if "norm_output" in values:
        recurrent = "post_norm" if values["norm_output"] else "pre_norm"
    wiring = Wiring(
        features=features,
        pre_norm=pre_norm,  # type: ignore[arg-type]
        recurrent_state=recurrent,  # type: ignore[arg-type]
        norm_before_residual=values.get("norm_before_residual"),
        bias=values.get("bias"),
    )
    return wiring, tuple(unread), tuple(steps)
