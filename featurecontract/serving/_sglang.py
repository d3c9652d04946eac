"""SGLang's speculative flags: what ``ServerArgs`` makes of them before the server starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from featurecontract.serving._acceptance import forced_acceptance, lossy_acceptance
from featurecontract.serving._arguments import shown
from featurecontract.serving._effective import Effective, Setting, shaped
from featurecontract.serving._rules import first_block_size, rules_of, valid_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from featurecontract.serving._arguments import Arguments
    from featurecontract.serving._effective import Origin

__all__ = ["effective_sglang"]

_NAME = "sglang"
_SHAPE_FLAGS = "--speculative-num-steps, --speculative-eagle-topk and --speculative-num-draft-tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The flags that are given, and what the rules need to know besides."""

    version: str
    method: str
    architecture: str | None
    drafter_path: str | None
    draft_config: Mapping[str, Any]
    steps: int | None
    top_k: int | None
    tokens: int | None
    path: str | None
    page_size: int | None
    adaptive: bool
    arguments: Arguments

    @property
    def rules(self) -> Mapping[str, Any]:
        return rules_of(_NAME)


def effective_sglang(
    version: str,
    arguments: Arguments,
    *,
    method: str,
    target_architecture: str | None,
    drafter_path: str | None,
    draft_config: Mapping[str, Any],
) -> Effective:
    """Return what SGLang serves; raises UsageError for a value that no version takes."""

    def integer(name: str, least: int = 1) -> int | None:
        return arguments.integer(name, family=_NAME, version=version, least=least)

    asked = _Asked(
        version=version,
        method=method,
        architecture=target_architecture,
        drafter_path=drafter_path,
        draft_config=draft_config,
        steps=integer("--speculative-num-steps", 0),
        top_k=integer("--speculative-eagle-topk"),
        tokens=integer("--speculative-num-draft-tokens"),
        path=arguments.text("--speculative-draft-model-path", family=_NAME, version=version),
        page_size=integer("--page-size"),
        adaptive=arguments.text("--speculative-adaptive", family=_NAME, version=version) is not None,
        arguments=arguments,
    )
    algorithm = _algorithm(asked)
    served = Effective(algorithm=algorithm)
    if algorithm.origin not in {"off", "refused"}:
        served = shaped(
            _shape(asked, algorithm.effective), algorithm=algorithm, method=_method(asked, algorithm.effective)
        )
    return replace(
        served,
        forced_acceptance=forced_acceptance(_NAME, version, arguments),
        lossy_acceptance=lossy_acceptance(_NAME, version, arguments),
    )


def _shape(asked: _Asked, algorithm: str) -> dict[str, Setting]:
    family = asked.rules["families"].get(algorithm, "other")
    if family == "eagle":
        return {**_eagle_shape(asked, algorithm), "draft_path": _eagle_path(asked)}
    if family == "block":
        return {**_block_shape(asked, algorithm), "draft_path": _block_path(asked, algorithm)}
    return {}


def _algorithm(asked: _Asked) -> Setting:
    name = "--speculative-algorithm"
    given = asked.arguments.text(name, family=_NAME, version=asked.version)
    wanted = " or ".join(asked.rules["methods"].get(asked.method, ())) or "EAGLE3"
    step = f"{name} {wanted}"
    source = asked.rules["algorithms"]["source"]
    tables = valid_at(asked.version, asked.rules["algorithms"]["table"])
    if given is None or (given.upper() == "NONE" and tables and not tables[0]["closed"]):
        flags = [item.name for item in asked.arguments.flags if item.name.startswith("--speculative-")]
        reason = f"no {name}: SGLang serves the target alone"
        if asked.path is not None:
            reason += "; --speculative-draft-model-path is ignored without a word in the log"
        elif flags:
            reason += f"; {flags[0][:60]} is ignored"
        requested = "drafting" if flags else None
        return Setting(requested=requested, origin="off", reason=reason, source=source, next_step=f"add {step}")
    resolved = given
    if tables:
        known = tables[0]["names"]
        resolved = given if tables[0]["closed"] else given.upper()
        if resolved not in known:
            also = "" if tables[0]["closed"] else ", unless a plugin registers it"
            reason = f"SGLang {asked.version} has no algorithm {given[:40]!r}{also}; it has {', '.join(known)}"
            return Setting(requested=given[:40], origin="refused", reason=reason, source=source, next_step=step)
    drafters = asked.draft_config.get("architectures")
    for rule in valid_at(asked.version, asked.rules["promotions"]):
        named = isinstance(drafters, list) and any(item in rule["draft_architectures"] for item in drafters)
        if named and asked.path is not None and resolved in rule["from"]:
            return Setting(effective=rule["to"], reason=f"{resolved} becomes {rule['to']}", source=rule["source"])
    # Not a request that is overridden: the alias is documented to mean it.
    return Setting(effective=asked.rules["aliases"].get(resolved, resolved), source=source)


def _method(asked: _Asked, algorithm: str) -> Setting:
    allowed = asked.rules["methods"].get(asked.method)
    if allowed is None or algorithm in allowed:
        return Setting()
    instead = f"--speculative-algorithm {allowed[0]}" if allowed else f"SGLang has no algorithm for {asked.method}"
    return Setting(
        requested=asked.method,
        effective=algorithm,
        origin="forced",
        reason=f"{algorithm} does not feed a drafter of method {asked.method}",
        source=asked.rules["algorithms"]["source"],
        next_step=instead,
    )


def _eagle_shape(asked: _Asked, algorithm: str) -> dict[str, Setting]:
    adaptive = asked.rules["adaptive"]
    if asked.adaptive and valid_at(asked.version, [adaptive]) and asked.top_k in {None, 1}:
        reason = "--speculative-adaptive moves the steps with the load; draft tokens are the steps + 1"
        moving = Setting(requested=asked.steps, origin="unknown", reason=reason, source=adaptive["source"])
        chain = Setting(requested=asked.top_k, effective=1, origin="automatic", follows=True)
        return {"num_steps": moving, "top_k": chain, "num_draft_tokens": replace(moving, requested=None, follows=True)}
    if asked.steps is None:
        return _automatic_shape(asked, algorithm)
    steps = Setting(requested=asked.steps, effective=asked.steps)
    if asked.top_k is None:
        return {"num_steps": steps, "top_k": _missing_top_k(asked)}
    top_k = _paged_top_k(asked, asked.top_k)
    return {"num_steps": steps, "top_k": top_k, "num_draft_tokens": _tokens(asked, asked.steps, top_k.effective)}


def _missing_top_k(asked: _Asked) -> Setting:
    rules = valid_at(asked.version, [asked.rules["topk_required"]])
    return Setting(
        origin="refused" if rules else "unknown",
        reason="--speculative-num-steps without --speculative-eagle-topk: SGLang compares None with 1 and stops",
        log="TypeError: '>' not supported between instances of 'NoneType' and 'int'",
        source=rules[0]["source"] if rules else "",
        next_step=f"set --speculative-eagle-topk 1 --speculative-num-draft-tokens {(asked.steps or 0) + 1}",
    )


def _paged_top_k(asked: _Asked, top_k: int) -> Setting:
    rules = valid_at(asked.version, [asked.rules["pages"]])
    if rules and top_k > 1 and (asked.page_size or 1) > 1:
        rule = rules[0]
        reason = f"with --page-size {asked.page_size} SGLang {asked.version} sets top-k to 1"
        return Setting(
            requested=top_k, effective=1, origin="forced", reason=reason, log=rule["log"], source=rule["source"]
        )
    return Setting(requested=top_k, effective=top_k)


def _tokens(asked: _Asked, steps: int, top_k: int) -> Setting:
    """Top-k 1 is a chain: one row for each step and the sampled token's, whatever was asked for."""
    rules = valid_at(asked.version, [asked.rules["chain"]])
    if top_k != 1 or not rules:
        return Setting(requested=asked.tokens, effective=asked.tokens)
    served = steps + 1
    wanted = asked.tokens if asked.tokens is not None else served
    origin: Origin = "forced" if wanted != served else "request"
    return Setting(
        requested=asked.tokens,
        effective=served,
        origin="automatic" if asked.tokens is None else origin,
        reason=f"with --speculative-eagle-topk 1 SGLang serves --speculative-num-steps + 1 = {served} draft tokens",
        log=rules[0]["log"] if wanted != served or asked.tokens is None else "",
        source=rules[0]["source"],
        next_step=f"set --speculative-num-steps {max(wanted - 1, 1)}, or --speculative-num-draft-tokens {served}",
        follows=True,
    )


def _automatic_shape(asked: _Asked, algorithm: str) -> dict[str, Setting]:
    rules = asked.rules["automatic"]
    source = rules["source"]
    if asked.top_k is not None or asked.tokens is not None:
        reason = "SGLang takes all three of the draft shape or none: without --speculative-num-steps it stops"
        refused = Setting(
            origin="refused", reason=reason, log="AssertionError", source=source, next_step="set all of " + _SHAPE_FLAGS
        )
        return {"num_steps": refused}
    shapes = []
    for rule in valid_at(asked.version, rules["table"]):
        if algorithm not in rule.get("algorithms", (algorithm,)):
            continue
        named = rule.get("architectures")
        if named is None or asked.architecture is None or asked.architecture in named:
            shapes.append(tuple(rule["shape"]))
        # An entry for some architectures settles nothing while the target's is unknown.
        if named is None or asked.architecture in named:
            break
    shapes = list(dict.fromkeys(shapes))
    names = ("num_steps", "top_k", "num_draft_tokens")
    if not shapes:
        return {}
    step = f"set {_SHAPE_FLAGS}"
    if len(shapes) > 1:
        text = " or ".join("/".join(map(str, shape)) for shape in shapes)
        reason = f"the target's architecture decides steps, top-k and draft tokens: {text}"
        return {
            name: Setting(
                origin="unknown",
                reason=reason,
                source=source,
                next_step=step,
                follows=position > 0,
                alternatives=tuple(shape[position] for shape in shapes),
            )
            for position, name in enumerate(names)
        }
    chosen = shapes[0]
    where = f" for {shown(asked.architecture)}" if asked.architecture else ""
    reason = f"SGLang {asked.version} chooses {chosen[0]} steps, top-k {chosen[1]}, {chosen[2]} draft tokens{where}"
    return {
        name: Setting(
            effective=chosen[position],
            origin="automatic",
            reason=reason,
            source=source,
            next_step=step,
            follows=position > 0,
        )
        for position, name in enumerate(names)
    }


def _block_shape(asked: _Asked, algorithm: str) -> dict[str, Setting]:
    rule = asked.rules["block"][algorithm]
    shape = {
        name: _one(rule, asked_value, parameter, algorithm)
        for name, asked_value, parameter in (
            ("num_steps", asked.steps, "speculative_num_steps"),
            ("top_k", asked.top_k, "speculative_eagle_topk"),
        )
    }
    block = asked.arguments.integer(rule["flag"], family=_NAME, version=asked.version)
    return {**shape, "num_draft_tokens": _block_tokens(asked, algorithm, block)}


def _one(rule: Mapping[str, Any], value: int | None, parameter: str, algorithm: str) -> Setting:
    if value in {None, 1}:
        return Setting(requested=value, effective=1, origin="request" if value else "automatic", follows=True)
    return Setting(
        requested=value,
        effective=1,
        origin="forced",
        reason=f"{algorithm} drafts a whole block in one step",
        log=rule["log"].format(parameter=parameter, requested=value),
        source=rule["source"],
        next_step=f"set --{parameter.replace('_', '-')} 1; the length is {rule['flag']}",
    )


def _block_tokens(asked: _Asked, algorithm: str, block: int | None) -> Setting:
    """The verified rows: the block of DFlash holds the sampled token, DSpark's gamma does not."""
    rule = asked.rules["block"][algorithm]
    source, extra = rule["source"], rule["extra"]
    trained = first_block_size(asked.draft_config, rule["keys"])
    rows = None if block is None else block + extra
    if rows is None and rule["explicit_must_match"] and trained is not None:
        rows = trained + extra
    if asked.tokens is not None and rows not in {None, asked.tokens}:
        return Setting(
            requested=asked.tokens,
            origin="refused",
            reason=f"{algorithm} needs {rows} draft tokens for a block of {(rows or 0) - extra}; SGLang does not start",
            source=source,
            next_step=f"drop --speculative-num-draft-tokens, or set it to {rows}",
        )
    if asked.tokens is not None or block is not None:
        return Setting(requested=asked.tokens or rows, effective=asked.tokens or rows, source=source)
    size = trained if trained is not None else rule["default"]
    origin = "the drafter's block_size" if trained is not None else "SGLang's default, the drafter names none"
    return Setting(
        effective=size + extra,
        origin="automatic",
        reason=f"{size + extra} draft tokens from a block of {size}: {origin}",
        source=source,
        next_step=f"set {rule['flag']}",
    )


def _path_step(asked: _Asked) -> str:
    return f"add --speculative-draft-model-path {asked.drafter_path or 'DRAFTER'}"


def _is_whole(arguments: Arguments) -> bool:
    """Whether a whole command line is there; one that names no target is a fragment, and the path may be elsewhere."""
    names = {"--model", "--model-path"}
    return any(item.name in names or item.value == "sglang.launch_server" for item in arguments.flags)


def _eagle_path(asked: _Asked) -> Setting:
    if asked.path is not None:
        return Setting(requested=asked.path, effective=asked.path)
    rules = asked.rules["draft_path"]
    listed = {name for rule in valid_at(asked.version, rules["table"]) for name in rule["architectures"]}
    whole, step = _is_whole(asked.arguments), _path_step(asked)
    if asked.architecture in listed:
        # MTP weights are the target's own; any other drafter is not what is loaded then.
        origin: Origin = "unknown" if whole and asked.method not in {"mtp", ""} else "automatic"
        reason = f"no --speculative-draft-model-path: for {asked.architecture} SGLang takes the target's path"
        path = "the target's path"
        return Setting(effective=path, origin=origin, reason=reason, source=rules["source"], next_step=step)
    if not whole or asked.method in {"mtp", ""}:
        return Setting()
    reason = "no --speculative-draft-model-path: SGLang loads the target as its own drafter and fails"
    return Setting(origin="refused", reason=reason, source=rules["source"], next_step=step)


def _block_path(asked: _Asked, algorithm: str) -> Setting:
    if asked.path is not None:
        return Setting(requested=asked.path, effective=asked.path)
    source, step = asked.rules["block"][algorithm]["source"], _path_step(asked)
    if algorithm == "DSPARK":
        reason = "no --speculative-draft-model-path: SGLang takes a DSpark drafter out of the target, or stops"
        path = "the target's path"
        return Setting(effective=path, origin="automatic", reason=reason, source=source, next_step=step)
    if not _is_whole(asked.arguments):
        return Setting()
    reason = "no --speculative-draft-model-path: SGLang does not start"
    log = "DFLASH speculative decoding requires setting --speculative-draft-model-path."
    return Setting(origin="refused", reason=reason, log=log, source=source, next_step=step)
