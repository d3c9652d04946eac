"""vLLM's ``--speculative-config``: which method runs, and how many tokens it drafts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from featurecontract.errors import UsageError
from featurecontract.runtimes._versions import in_range
from featurecontract.serving._acceptance import forced_acceptance, lossy_acceptance
from featurecontract.serving._arguments import shown
from featurecontract.serving._effective import Effective, Setting, shaped
from featurecontract.serving._rules import first_block_size, rules_of, valid_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from featurecontract.serving._arguments import Arguments
    from featurecontract.serving._effective import Origin

__all__ = ["effective_vllm", "forced_runner"]

_NAME = "vllm"
_MAX_METHOD = 60


def forced_runner(version: str, arguments: Arguments) -> str | None:
    """Return the model runner that the environment forces, ``vllm-v1`` or ``vllm-v2``, or None: vLLM chooses.

    A false value forces V1 only from 0.22 on, where an unset variable means "choose" (vLLM ``envs.py``).
    """
    rule = rules_of(_NAME)["runner"]
    value = arguments.environment.get(rule["variable"], "")
    if not in_range(version, rule["versions"]) or value not in {"0", "1"}:
        return None
    return "vllm-v2" if value == "1" else "vllm-v1"


def effective_vllm(
    runtime: str,
    version: str,
    arguments: Arguments,
    *,
    method: str,
    drafter_path: str | None,
    draft_config: Mapping[str, Any],
) -> Effective:
    """Return what vLLM serves; raises UsageError for a value that no version takes."""
    settings = {
        key: value
        for key, value in (
            ("method", arguments.text("--spec-method", family=_NAME, version=version)),
            ("model", arguments.text("--spec-model", family=_NAME, version=version)),
        )
        if value is not None
    }
    for key in ("method", "model"):
        value = (arguments.speculative or {}).get(key)
        if value is not None and not isinstance(value, str):
            raise UsageError(f"{arguments.source}: {key}: {shown(value)} is not a text")
        if value is not None and key not in settings:
            settings[key] = value
    if len(settings.get("method", "")) > _MAX_METHOD:
        raise UsageError(f"{arguments.source}: method: {shown(settings['method'])} is no method")
    tokens = arguments.integer("--spec-tokens", family=_NAME, version=version)
    tokens = tokens if tokens is not None else arguments.setting("num_speculative_tokens")
    if not settings and tokens is None and not arguments.speculative:
        served = Effective(algorithm=_off(arguments, version, method, drafter_path, draft_config))
    else:
        algorithm = _algorithm(version, settings, tokens, draft_config, method)
        served = Effective(algorithm=algorithm)
        if algorithm.origin != "refused":
            shape = _shape(version, algorithm.effective, tokens, arguments, draft_config)
            shape["draft_path"] = _path(version, algorithm.effective, settings, drafter_path)
            served = shaped(shape, algorithm=algorithm, method=_method(algorithm, method))
    return replace(
        served,
        forced_acceptance=forced_acceptance(runtime, version, arguments),
        lossy_acceptance=lossy_acceptance(runtime, version, arguments),
    )


def _off(
    arguments: Arguments, version: str, method: str, drafter_path: str | None, draft_config: Mapping[str, Any]
) -> Setting:
    rules = rules_of(_NAME)
    wanted = next(iter(rules["methods"].get(method, ())), "eagle3")
    served = {item.rstrip("/") for item in arguments.positional}
    served |= {item.value.rstrip("/") for item in arguments.flags if item.name == "--model" and item.value}
    if (
        isinstance(draft_config.get("speculators_config"), dict)
        and drafter_path is not None
        and drafter_path.rstrip("/") in served
        and in_range(version, rules["speculators"]["versions"])
    ):
        reason = "the drafter is served as the model: vLLM takes the target and the method from its speculators_config"
        return Setting(effective=wanted, origin="automatic", reason=reason, source=rules["speculators"]["source"])
    reason = "no --speculative-config: vLLM serves the target alone"
    if arguments.unread:
        reason += f"; {shown(arguments.unread[0])} was not read"
    config = f'{{"method": "{wanted}", "model": "{drafter_path or "DRAFTER"}", "num_speculative_tokens": 3}}'
    step = f"add --speculative-config '{config}'"
    asked = None
    if _NAME in arguments.families():
        asked, reason = "drafting", f"vLLM {version} has none of these flags; {reason}"
    return Setting(requested=asked, origin="off", reason=reason, source=rules["guesses"]["source"], next_step=step)


def _algorithm(
    version: str, settings: Mapping[str, str], tokens: int | None, draft_config: Mapping[str, Any], method: str
) -> Setting:
    rules = rules_of(_NAME)
    source = rules["guesses"]["source"]
    given, model = settings.get("method"), settings.get("model")
    step = f'set "method": "{next(iter(rules["methods"].get(method, ())), "eagle3")}" in --speculative-config'
    for rule in valid_at(version, rules["unknown_methods"]["table"]):
        if given in rule["methods"]:
            reason = f"vLLM {version} has no method {given!r}"
            unknown = rules["unknown_methods"]["source"]
            return Setting(requested=given, origin="refused", reason=reason, source=unknown, next_step=step)
    plain = "mtp" if given is not None and given.endswith("mtp") else given
    if plain in rules["without_model"]:
        return Setting(requested=given, effective=given, source=source)
    if model is None:
        target = rules["target_model"].get(plain or "")
        if target is not None and in_range(version, target):
            return Setting(requested=plain, effective=plain, source=source)
        reason = 'no "model" in --speculative-config: vLLM does not start'
        log = "num_speculative_tokens was provided but without speculative model." if tokens is not None else ""
        return Setting(
            requested=given, origin="refused", reason=reason, log=log, source=source, next_step='set "model"'
        )
    kept = {name for rule in valid_at(version, rules["kept"]["table"]) for name in rule["methods"]}
    guess, why = (None, "") if plain in kept else _guess(version, model, draft_config)
    if guess is None:
        return Setting(requested=plain, effective=plain, source=source)
    return _guessed(version, plain, guess, why, step)


def _guessed(version: str, plain: str | None, guess: str, why: str, step: str) -> Setting:
    source = rules_of(_NAME)["guesses"]["source"]
    if not guess:
        return Setting(requested=plain, origin="refused", reason=why, source=source, next_step=step)
    reason = f"vLLM {version} takes it for {guess}: {why}"
    if plain is None:
        # Right by the name of a folder is still luck.
        return Setting(
            effective=guess, origin="unknown", reason=f'no "method": {reason}', source=source, next_step=step
        )
    origin: Origin = "request" if guess == plain else "forced"
    return Setting(requested=plain, effective=guess, origin=origin, reason=reason, source=source, next_step=step)


def _guess(version: str, model: str, draft_config: Mapping[str, Any]) -> tuple[str | None, str]:
    """Return the method that vLLM guesses and from what; an empty method is a refusal, None is no rule."""
    lowered = model.lower()
    architectures = draft_config.get("architectures")
    names = architectures if isinstance(architectures, list) else []
    model_type = str(draft_config.get("model_type") or "")
    for rule in valid_at(version, rules_of(_NAME)["guesses"]["table"]):
        part = next((item for item in rule.get("path", ()) if item in lowered), None)
        if part is not None:
            return rule["method"], f"{part!r} is in the draft path {shown(model)}"
        if any(item in names for item in rule.get("architectures", ())):
            return rule["method"], "the drafter's architecture says so"
        suffix = rule.get("model_type_suffix")
        if model_type in rule.get("model_types", ()) or (suffix and model_type.endswith(suffix)):
            return rule["method"], f"its model_type is {shown(model_type)}"
        if not {"path", "architectures", "model_types", "model_type_suffix"} & rule.keys():
            if rule.get("refusal"):
                return "", f"no method's name is in the draft path {shown(model)}: {rule['refusal']}"
            return rule["method"], f"no method's name is in the draft path {shown(model)}"
    return None, ""


def _method(algorithm: Setting, method: str) -> Setting:
    allowed = rules_of(_NAME)["methods"].get(method)
    if allowed is None or algorithm.effective in allowed or algorithm.effective is None:
        return Setting()
    step = f'set "method": "{allowed[0]}" in --speculative-config'
    reason = algorithm.reason or f"method {shown(algorithm.effective)} does not feed a drafter of method {method}"
    return Setting(
        requested=method,
        effective=algorithm.effective,
        origin="forced",
        reason=reason,
        source=algorithm.source,
        next_step=step,
    )


def _shape(
    version: str, algorithm: str | None, tokens: int | None, arguments: Arguments, draft_config: Mapping[str, Any]
) -> dict[str, Setting]:
    rules = rules_of(_NAME)
    by_load = rules["by_load"]
    if in_range(version, by_load["versions"]) and (arguments.speculative or {}).get(by_load["key"]) is not None:
        moving = Setting(
            origin="unknown", reason=f"{by_load['key']} moves the steps with the load", source=by_load["source"]
        )
        return {"num_steps": moving}
    source = rules["tokens"]["source"]
    block = algorithm in rules["block_methods"]
    if tokens is None:
        for rule in valid_at(version, rules["tokens"]["table"]):
            default = first_block_size(draft_config, rule["keys"])
            if algorithm in rule["methods"] and default is not None:
                key = rule["keys"][0][-1]
                reason = f"no num_speculative_tokens: {default}, from the drafter's {key}"
                return _rows(default, Setting(origin="automatic", reason=reason, source=source), block=block)
        log = valid_at(version, rules["tokens"]["refusals"])[0]["text"]
        reason = "no num_speculative_tokens: vLLM does not start"
        step = 'set "num_speculative_tokens"'
        return {"num_steps": Setting(origin="refused", reason=reason, log=log, source=source, next_step=step)}
    return _rows(tokens, Setting(requested=tokens, source=source), block=block)


def _rows(count: int, asked: Setting, *, block: bool) -> dict[str, Setting]:
    """A chain of n drafts is n steps and n + 1 rows; a block of n drafts is one step and n + 1 rows."""
    requested = None if asked.requested is None else count + 1
    reason = asked.reason or f"num_speculative_tokens {count} is {count + 1} verified rows"
    rows = Setting(
        requested=requested,
        effective=count + 1,
        origin=asked.origin,
        reason=reason,
        source=asked.source,
        next_step='set "num_speculative_tokens" in --speculative-config',
        follows=not block,
    )
    if block:
        return {"num_draft_tokens": rows}
    steps = Setting(
        requested=asked.requested,
        effective=count,
        origin=asked.origin,
        reason=reason,
        source=asked.source,
        next_step=rows.next_step,
    )
    return {"num_steps": steps, "num_draft_tokens": rows}


def _path(version: str, algorithm: str | None, settings: Mapping[str, str], drafter_path: str | None) -> Setting:
    model = settings.get("model")
    target = rules_of(_NAME)["target_model"].get(algorithm or "")
    if model is not None or target is None or not in_range(version, target):
        return Setting(requested=model, effective=model)
    return Setting(
        effective="the target's path",
        origin="automatic",
        reason=f'no "model" in --speculative-config: for {algorithm} vLLM takes the drafter out of the target',
        source=rules_of(_NAME)["guesses"]["source"],
        next_step=f'set "model": "{drafter_path or "DRAFTER"}"',
    )
