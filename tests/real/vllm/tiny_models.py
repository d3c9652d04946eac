"""Tiny random targets and EAGLE-3 drafters, written by the tests themselves; nothing is downloaded.

The CPU attention of vLLM takes head sizes from 32 on. Norm weights are uneven, so that a norm too many or too few
shows; the random weights are large, so that neighbouring layers differ.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

LAYERS, WIDTH, VOCAB, DRAFT_VOCAB, INNER, HEADS, HEAD = 8, 64, 512, 256, 128, 2, 32
POSITIONS = 256
#: The probe of every drafter here.
TOKENS = torch.randperm(VOCAB - 2, generator=torch.Generator().manual_seed(3))[:64].add(2).tolist()
_SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "max_position_embeddings": POSITIONS,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
    "initializer_range": 0.35,
}
_MLA = {
    "moe_intermediate_size": 64,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": LAYERS,
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "n_group": 1,
    "topk_group": 1,
    # As the published models have it; vLLM 0.32.0 rotates plain rope with a CPU kernel that misreads queries by heads.
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 4.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
}


def make_target(folder: Path, kind: str, *, seed: int = 0) -> Path:
    """Write a target: ``llama``, ``qwen3`` or ``deepseek`` (V3 type)."""
    import transformers as hf

    torch.manual_seed(seed)
    if kind == "llama":
        model = hf.LlamaForCausalLM(hf.LlamaConfig(**_SHAPE, head_dim=HEAD))
    elif kind == "qwen3":
        model = hf.Qwen3ForCausalLM(hf.Qwen3Config(**_SHAPE, head_dim=HEAD))
    else:
        model = hf.DeepseekV3ForCausalLM(hf.DeepseekV3Config(**_SHAPE, **_MLA))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1 + 0.3 * torch.randn_like(parameter))
    model.to(torch.float32).save_pretrained(folder)
    if kind == "deepseek":
        # transformers drops what vLLM asks for.
        path = folder / "config.json"
        config = json.loads(path.read_text()) | {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}
        path.write_text(json.dumps(config))
    _write_tokenizer(folder)
    return folder


def make_drafter(
    folder: Path,
    ids: list[int] | None,
    *,
    nested: bool = True,
    seed: int = 1,
    slots: int = 3,
    lively: bool = False,
    own_embedding: bool = False,
    **config_changes,
) -> Path:
    """Write a drafter with these layer ids in its config, nested in ``eagle_config`` or on top; None writes none.

    ``lively``: what is drafted depends on the attention and on the token as much as on the features, so that a fault
    in any of them changes tokens. ``own_embedding``: unlike the target's.
    """
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)

    def weight(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * shape[-1] ** -0.5

    def norm() -> torch.Tensor:
        return 1 + 0.3 * torch.randn(WIDTH, generator=generator)

    inside, width = HEADS * HEAD, WIDTH
    chosen = torch.arange(0, VOCAB, VOCAB // DRAFT_VOCAB)
    held = torch.zeros(VOCAB, dtype=torch.bool)
    held[chosen] = True
    tensors = {
        "fc.weight": weight(width, slots * width),
        "midlayer.self_attn.q_proj.weight": weight(inside, 2 * width),
        "midlayer.self_attn.k_proj.weight": weight(inside, 2 * width),
        "midlayer.self_attn.v_proj.weight": weight(inside, 2 * width),
        "midlayer.self_attn.o_proj.weight": weight(width, inside),
        "midlayer.mlp.gate_proj.weight": weight(INNER, width),
        "midlayer.mlp.up_proj.weight": weight(INNER, width),
        "midlayer.mlp.down_proj.weight": weight(width, INNER),
        "midlayer.input_layernorm.weight": norm(),
        "midlayer.hidden_norm.weight": norm(),
        "midlayer.post_attention_layernorm.weight": norm(),
        "norm.weight": norm(),
        "lm_head.weight": weight(DRAFT_VOCAB, width),
        # Offsets: the target's id is the draft id plus this.
        "d2t": chosen - torch.arange(DRAFT_VOCAB),
        "t2d": held,
    }
    if lively:
        for part, factor in (("fc.", 0.1), ("q_proj", 2.0), ("k_proj", 2.0), ("v_proj", 2.0), ("o_proj", 2.0)):
            tensors |= {name: factor * value for name, value in tensors.items() if part in name}
    if own_embedding:
        tensors["embed_tokens.weight"] = torch.randn(VOCAB, width, generator=generator)
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **{key: value for key, value in _SHAPE.items() if key != "initializer_range"},
        "num_hidden_layers": 1,
        "head_dim": HEAD,
        "draft_vocab_size": DRAFT_VOCAB,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "pad_token_id": 1,
        "torch_dtype": "float32",
        "attention_bias": False,
        **config_changes,
    }
    if ids is not None and nested:
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True}
    elif ids is not None:
        config["eagle_aux_hidden_state_layer_ids"] = ids
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _write_tokenizer(folder: Path) -> None:
    """Write a byte-level tokenizer with as many entries as the target has rows."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    names += [f"<filler_{number}>" for number in range(len(names), VOCAB)]
    tokenizer = Tokenizer(models.BPE(vocab={name: place for place, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    ).save_pretrained(folder)
