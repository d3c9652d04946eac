"""Tiny random targets of the decoder layouts of transformers, built from configs, with nothing downloaded."""

from __future__ import annotations

import torch

LAYERS, HIDDEN, VOCAB = 4, 32, 160
COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attn_implementation": "eager",
}
MOE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
}
#: Name -> (class prefix, what its config needs besides).
TEXT = {
    "llama": ("Llama", {}),
    "mistral": ("Mistral", {}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 8}),
    "qwen3-moe": ("Qwen3Moe", {**MOE, "head_dim": 8}),
    "gemma2": ("Gemma2", {"head_dim": 8, "query_pre_attn_scalar": 8, "final_logit_softcapping": 30.0}),
    "gemma3": ("Gemma3", {"head_dim": 8, "query_pre_attn_scalar": 8}),
    "gpt-oss": ("GptOss", {**MOE, "head_dim": 8}),
    "deepseek-v3": ("DeepseekV3", LATENT),
    "phi": ("Phi", {"num_key_value_heads": 4}),
    "phi3": ("Phi3", {}),
    "glm": ("Glm", {"head_dim": 8}),
    "glm4": ("Glm4", {"head_dim": 8}),
    "mixtral": ("Mixtral", MOE),
    "olmo2": ("Olmo2", {}),
    "granite": ("Granite", {"residual_multiplier": 0.22, "logits_scaling": 4.0, "embedding_multiplier": 6.0}),
    "cohere": ("Cohere", {"logit_scale": 0.25}),
    "gpt-neox": ("GPTNeoX", {"num_key_value_heads": None}),
    "gpt2": ("GPT2", {}),
}
WRAPPED = ("llava",)
NAMES = (*TEXT, *WRAPPED)


def build(transformers, name):
    """Return a random target in float32; its weights are large enough that every layer matters."""
    torch.manual_seed(0)
    model = _wrapped(transformers) if name in WRAPPED else _text(transformers, name)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.2)
            elif "norm" in key:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def _text(transformers, name):
    prefix, more = TEXT[name]
    known = {key: value for key, value in {**COMMON, **more}.items() if value is not None}
    config_class = getattr(transformers, f"{prefix}Config", None) or transformers.Gemma3TextConfig
    if name == "gemma3":
        config_class = transformers.Gemma3TextConfig
    model_class = getattr(transformers, f"{prefix}LMHeadModel" if name == "gpt2" else f"{prefix}ForCausalLM")
    if name == "gpt2":
        known = {"vocab_size": VOCAB, "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": 4, "attn_implementation": "eager"}
    return model_class(config_class(**known))


def _wrapped(transformers):
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": LAYERS,  # as many as the text model, so that the depth alone does not tell them apart
        "num_attention_heads": 2,
        "image_size": 16,
        "patch_size": 8,
        "projection_dim": 16,
    }
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**vision),
        text_config=transformers.LlamaConfig(**COMMON),
        image_token_index=3,
    )
    return transformers.LlavaForConditionalGeneration(config)
