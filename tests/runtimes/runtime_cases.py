"""Short ways to ask the rules of SGLang and vLLM; expectations in the tests are worked out from the wheels by hand."""

from __future__ import annotations

from featurecontract.runtimes import Query, choose, resolve

KIMI, LLAMA, QWEN3, GPT_OSS = "DeepseekV3ForCausalLM", "LlamaForCausalLM", "Qwen3ForCausalLM", "GptOssForCausalLM"


def config_of(*, nested=None, top=None, **extra):
    """Return an EAGLE-3 drafter's config with ids nested, at the top level, in both places or in none."""
    config = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 4096}
    config |= {"num_hidden_layers": 1, "draft_vocab_size": 32000}
    if nested is not None:
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": nested, "use_aux_hidden_state": True}
    if top is not None:
        config["eagle_aux_hidden_state_layer_ids"] = top
    return config | extra


def ask(runtime, *, config, target=LLAMA, depth=32, method="eagle3", fc_in=None, serving=None, **more):
    """Resolve a config for one runner; ``runtime`` is ``NAME==VERSION``, ``target`` its class, or outer and inner."""
    (choice,) = choose(runtime)
    query = Query(
        method=method,
        config=config,
        num_hidden_layers=depth,
        hidden_size=4096,
        architectures=target if isinstance(target, tuple) else (target,) if target else (),
        fc_in=fc_in,
        fc_out=4096,
        serving_ids=serving,
        **more,
    )
    return resolve(choice.rules, choice.runner, choice.version, query)


def fed(runtime, **case):
    """Return the boundaries that are fed, or the cause of the crash."""
    found = ask(runtime, **case)
    return found.crash.cause if found.crash else found.wiring.boundaries
