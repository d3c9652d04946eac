"""The runs behind the commands: ``predict`` without a contract, ``check`` against one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from featurecontract.contract import CONTRACT_FILE
from featurecontract.errors import InputError, UsageError
from featurecontract.findings import Finding, Predicted, Report, finding
from featurecontract.gate._inputs import Inputs, load_inputs, query_of
from featurecontract.gate._judge import judge, judge_alone
from featurecontract.gate._static import absolute_map, static_findings
from featurecontract.runtimes import NAMES, RuntimeChoice, RuntimeRules, choose, resolve, unknown_runtime

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    from featurecontract.runtimes import Resolution
    from featurecontract.serving import Arguments

__all__ = ["check", "check_inputs", "predict", "predict_inputs"]

# The runtimes whose command lines are known (docs/serving-flags.md).


def predict(
    path: str | os.PathLike[str],
    *,
    target: str | None = None,
    runtimes: Iterable[str] = (),
    dialect: str | None = None,
    rules: Mapping[str, RuntimeRules] | None = None,
    follow_links: bool = False,
) -> Report:
    """Say what each runtime would feed for a checkpoint on a target; no contract, torch or GPU needed.

    Args:
        path: Checkpoint directory, ``config.json`` or safetensors file.
        target: Model directory, ``config.json`` or ``name:L,H[,ARCHITECTURE]``; may be left out beside a contract.
        runtimes: ``NAME[==VERSION]``; none means every known runtime at its newest known version.
        dialect: Name of a dialect, to overrule the recognition.
        rules: Rules of forks by runtime name.
        follow_links: Whether links that leave the checkpoint may be followed.

    Raises:
        InputError: A file cannot be used.
        UsageError: An argument cannot be used.
    """
    inputs = load_inputs(path, target=target, dialect=dialect, follow_links=follow_links)
    return predict_inputs(inputs, runtimes, rules=rules)


def predict_inputs(
    inputs: Inputs, runtimes: Iterable[str], *, rules: Mapping[str, RuntimeRules] | None = None
) -> Report:
    """Predict for inputs that have been read."""
    query = query_of(inputs)
    predicted: list[Predicted] = []
    findings: list[Finding] = list(static_findings(replace(inputs, contract=None))[0])
    for choice in _choices(tuple(runtimes) or NAMES, findings, rules):
        found = resolve(choice.rules, choice.runner, choice.version, query)
        predicted.append(_predicted(choice, found))
        findings += judge_alone(choice, found, inputs.recognition.config.listed())
    if not tuple(runtimes):
        findings = [item for item in findings if item.details.get("reason") != "no-version"]
    return _report(inputs, predicted, findings, compared=len(predicted), declared=False)


def check(
    path: str | os.PathLike[str],
    *,
    target: str | None = None,
    runtimes: Iterable[str] = (),
    contract: str | os.PathLike[str] | None = None,
    rules: Mapping[str, RuntimeRules] | None = None,
    serve_args: str | None = None,
    digests: bool = False,
    strict: bool = False,
    follow_links: bool = False,
) -> Report:
    """Compare a checkpoint with its contract, and what each runtime would feed with what it declares.

    ``runtimes`` falls back to the contract's own ``serving.runtimes``. Raises InputError or UsageError.
    """
    inputs = load_inputs(path, target=target, contract=contract, need_contract=True, follow_links=follow_links)
    return check_inputs(inputs, runtimes, rules=rules, serve_args=serve_args, digests=digests, strict=strict)


def check_inputs(
    inputs: Inputs,
    runtimes: Iterable[str],
    *,
    rules: Mapping[str, RuntimeRules] | None = None,
    serve_args: str | None = None,
    digests: bool = False,
    strict: bool = False,
) -> Report:
    """Check inputs that have been read; they hold a contract."""
    contract = inputs.contract
    if contract is None:
        raise ValueError("check_inputs needs a contract")
    arguments = None
    if serve_args is not None:
        from featurecontract.serving import read_arguments

        arguments = read_arguments(serve_args)
        inputs = replace(inputs, serving_ids=arguments.layers_to_capture)
    query = query_of(inputs)
    static, compared = static_findings(inputs, digests=digests)
    findings = list(static)
    predicted: list[Predicted] = []
    wanted = tuple(runtimes)
    if wanted or not contract.serving:
        choices = _choices(wanted, findings, rules)
    else:
        wanted = contract.serving.runtimes
        choices = _declared_choices(inputs, wanted, findings, rules)
    for choice in choices:
        if arguments is not None and not _used(choice, arguments):
            continue
        found = resolve(choice.rules, choice.runner, choice.version, query)
        predicted.append(_predicted(choice, found))
        judged, count = judge(choice, query, found, contract)
        findings += judged
        findings += absolute_map(inputs, contract, choice)
        compared += count
        if arguments is not None:
            from featurecontract.serving import RUNTIMES, check_flags

            if choice.runner not in RUNTIMES:
                findings.append(
                    finding(
                        "flags-unchecked",
                        f"there are no rules for the command line of {choice.runner}",
                        runtime=choice.key,
                        next_step="read the effective values in the server's log",
                    )
                )
            findings += check_flags(
                choice.runner,
                choice.version,
                arguments,
                method=inputs.method,
                target_architecture=inputs.target.architecture,
                drafter_path=str(inputs.checkpoint.directory),
                draft_config=inputs.checkpoint.config,
                contract_serving=contract.serving,
            )
    findings = [_other_runner_serves(item, choices, predicted) for item in findings]
    if not wanted:
        findings.append(
            finding(
                "nothing-compared",
                "no runtime was named, so nothing says what will be fed",
                next_step="name what you serve, such as --runtime sglang==0.5.14; `rules --runtimes` lists the names",
            )
        )
    return _report(inputs, predicted, findings, compared=compared, strict=strict)


def _other_runner_serves(item: Finding, choices: Iterable[RuntimeChoice], predicted: list[Predicted]) -> Finding:
    """Turn a method that one runner lacks into a note, where the rules say that another, checked here, takes over."""
    if item.slug != "method-unsupported":
        return item
    served = {entry.runtime for entry in predicted if entry.wiring is not None}
    own = next((choice for choice in choices if choice.key == item.runtime and choice.rules.falls_back), None)
    if own is None or not any(
        choice.rules is own.rules and choice.version == own.version and choice.key in served for choice in choices
    ):
        return item
    step = f"nothing: {own.rules.title} falls back to its other model runner, checked here"
    return replace(item, severity="note", next_step=step)


def _used(choice: RuntimeChoice, arguments: Arguments) -> bool:
    """Whether the server's environment leaves this runner in use; vLLM's can force one of its two."""
    from featurecontract.serving import forced_runner

    forced = forced_runner(choice.version, arguments) if choice.rules.runtime == "vllm" else None
    return forced is None or forced == choice.runner


def _choices(
    wanted: Iterable[str], findings: list[Finding], rules: Mapping[str, RuntimeRules] | None
) -> list[RuntimeChoice]:
    out: dict[str, RuntimeChoice] = {}
    for text in wanted:
        chosen = choose(text, extra=rules)
        if not chosen:
            findings.append(unknown_runtime(text, extra=rules))
        for choice in chosen:
            out.setdefault(choice.key, choice)
    return list(out.values())


def _declared_choices(
    inputs: Inputs, wanted: Iterable[str], findings: list[Finding], rules: Mapping[str, RuntimeRules] | None
) -> list[RuntimeChoice]:
    """Choose what the contract itself names: what cannot be read there is a fault of the contract."""
    try:
        return _choices(wanted, findings, rules)
    except UsageError as error:
        raise InputError.single(
            inputs.contract_file or CONTRACT_FILE,
            str(error),
            place="serving.runtimes",
            next_step="write names such as sglang==0.5.14, or give --runtime",
            slug="contract-invalid",
        ) from None


def _predicted(choice: RuntimeChoice, found: Resolution) -> Predicted:
    crash = found.crash
    return Predicted(
        runtime=choice.key,
        wiring=found.wiring,
        alternatives=found.alternatives,
        key=found.key,
        ids=found.ids,
        shift=found.shift,
        steps=found.steps,
        crash=crash.when if crash else "",
        crash_message=crash.message if crash else "",
        reason=found.reason,
        sources=found.sources,
    )


def _report(
    inputs: Inputs,
    predicted: list[Predicted],
    findings: list[Finding],
    *,
    compared: int,
    declared: bool = True,
    strict: bool = False,
) -> Report:
    contract = inputs.contract if declared else None
    facts = inputs.target
    return Report(
        checkpoint=inputs.path,
        contract_path=inputs.contract_file if declared else None,
        contract_sha256=inputs.contract_sha256 if declared else None,
        target=f"{facts.name or facts.source}: {facts.num_hidden_layers} layers, {facts.hidden_size} wide"
        + (f", {facts.architecture}" if facts.architecture else ""),
        declared=contract.wiring if contract else None,
        num_hidden_layers=facts.num_hidden_layers,
        predicted=tuple(predicted),
        findings=tuple(findings),
        compared=compared,
        strict=strict,
    )
