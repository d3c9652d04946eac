"""Configs of every dialect, with the family and the readings that they must give; each is reduced to what matters."""

from __future__ import annotations

from dataclasses import dataclass, field

LLAMA = ["LlamaForCausalLM"]
LLAMA3 = ["LlamaForCausalLMEagle3"]
MODELOPT = {"use_input_layernorm_in_first_layer": True, "use_last_layernorm": True, "use_mtp_layernorm": False}
NESTED = "eagle_aux_hidden_state_layer_ids"
L36 = "h[2], h[18], h[33]"


@dataclass(frozen=True, kw_only=True)
class Case:
    """``readings``: the candidates' wirings as text, the likeliest first."""

    name: str
    code: str
    config: dict
    readings: tuple[str, ...]
    method: str = "eagle3"
    depth: int = 36
    recurrent: str = "pre_norm"
    conventions: tuple[str | None, ...] = field(default=())


def eagle(ids=None, /, *, architectures=LLAMA3, **config):
    inner = {"use_aux_hidden_state": True} | ({} if ids is None else {NESTED: ids})
    return {"architectures": architectures, "draft_vocab_size": 32000, "eagle_config": inner, **config}


def speculators(kind="eagle3", **config):
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": kind,
        "speculators_config": {"algorithm": kind},
        "draft_vocab_size": 32000,
        "transformer_layer_config": {"hidden_size": 4096, "num_hidden_layers": 1},
        **config,
    }


def block(ids, /, **config):
    return {
        "architectures": ["DFlashDraftModel"],
        "dflash_config": {"target_layer_ids": ids},
        "block_size": 16,
        **config,
    }


OUT, IN = "layer_output", "layer_input"
EAGLE1 = "drafter embedding, norm(h[36])"

CASES = (
    Case(name="eagle1", code="D1", method="eagle", recurrent="unknown", readings=(EAGLE1,),
         config={"architectures": LLAMA, "model_type": "llama", "num_hidden_layers": 1}),
    Case(name="eagle1-mixtral", code="D1", method="eagle", recurrent="unknown", readings=(EAGLE1,),
         config={"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_hidden_layers": 1}),
    Case(name="eagle1-sglang-copy", code="D1", method="eagle", recurrent="unknown", readings=(EAGLE1,),
         config={"architectures": ["LlamaForCausalLMEagle"], "model_type": "llama", "num_hidden_layers": 1,
                 "bias": False}),
    Case(name="eagle1-speculators", code="D1", method="eagle", recurrent="unknown", readings=(EAGLE1,),
         config=speculators("eagle", architectures=["EagleSpeculator"], draft_vocab_size=None)),
    Case(name="vllm-wrapper", code="D2", method="eagle", recurrent="unknown", readings=(EAGLE1,),
         config={"model_type": "eagle", "model": {"architectures": LLAMA, "model_type": "llama",
                 "num_hidden_layers": 1}}),
    Case(name="reference", code="D3", readings=(L36,), conventions=(None,),
         config={"architectures": LLAMA, "model_type": "llama", "draft_vocab_size": 32000, "num_hidden_layers": 1}),
    Case(name="reference-leaked-depth", code="D3", readings=("h[2], h[20], h[37]",), depth=40,
         config={"architectures": LLAMA, "model_type": "llama", "draft_vocab_size": 32000, "num_hidden_layers": 40}),
    Case(name="own-embedding", code="D4", readings=(L36,),
         config={"architectures": LLAMA3, "draft_vocab_size": 32000, "hidden_size": 6144, "target_hidden_size": 4096}),
    Case(name="specforge-nested", code="D5", readings=(L36, "h[1], h[17], h[32]"), conventions=(OUT, IN),
         config=eagle([1, 17, 32])),
    Case(name="specforge-nested-custom", code="D5", readings=("h[5], h[21], h[33]", "h[4], h[20], h[32]"),
         conventions=(OUT, IN), config=eagle([4, 20, 32])),
    Case(name="specforge-other-spelling-of-the-default", code="D5", readings=(L36, "h[3], h[19], h[34]"),
         conventions=(IN, OUT), config=eagle([2, 18, 33])),
    Case(name="specforge-nested-embedding", code="D5", readings=("embedding, h[3], h[31]",), conventions=(OUT,),
         config=eagle([-1, 2, 30])),
    Case(name="specforge-nested-in-text-config", code="D5", readings=(L36, "h[1], h[17], h[32]"),
         config={"architectures": LLAMA3, "text_config": eagle([1, 17, 32])}),
    Case(name="specforge-flat", code="D6", readings=(L36,), config={"architectures": LLAMA3,
                 "draft_vocab_size": 32000}),
    Case(name="specforge-flat-leaked-depth", code="D6", readings=(L36,),
         config={"architectures": LLAMA3, "draft_vocab_size": 32000, "num_hidden_layers": 36, "max_window_layers": 36}),
    Case(name="eagle3.1", code="D7", readings=(L36, "h[1], h[17], h[32]"), recurrent="pre_norm",
         config=eagle([1, 17, 32], fc_norm=True, norm_output=False)),
    Case(name="eagle3.1-norm-output", code="D7", readings=(L36,), recurrent="unknown",
         config={"architectures": LLAMA3, "draft_vocab_size": 32000, "fc_norm": True, "norm_output": True}),
    Case(name="eagle3.1-mla", code="D7", readings=(L36,), recurrent="unknown",
         config={"architectures": ["Eagle3DeepseekV2ForCausalLM"], "fc_norm": True, "norm_output": True}),
    Case(name="mla", code="D8", readings=("h[2], h[30], h[58]", "h[3], h[31], h[59]"), conventions=(IN, OUT), depth=61,
         config=eagle([2, 30, 58], architectures=["Eagle3DeepseekV2ForCausalLM"], model_type="kimi_k2")),
    Case(name="mla-fixture", code="D8", readings=("h[2], h[30], h[58]",), depth=61,
         config=eagle(architectures=["Eagle3DeepseekV3ForCausalLM"], model_type="kimi_k2")),
    Case(name="modelopt", code="D9", readings=(L36, "h[1], h[17], h[32]"), conventions=(OUT, IN),
         config={"architectures": LLAMA3, "eagle_config": {NESTED: [1, 17, 32],
                 "use_aux_hidden_state": True} | MODELOPT}),
    Case(name="modelopt-unsorted", code="D9", readings=(L36, "h[1], h[17], h[32]"), conventions=(OUT, IN),
         config={"architectures": LLAMA3, "eagle_config": {NESTED: [32, 1, 17]} | MODELOPT}),
    Case(name="modelopt-last-layer", code="D9", readings=("h[24], h[30], h[36]",), conventions=(IN,),
         config={"architectures": LLAMA3, "eagle_config": {NESTED: [24, 30, 36]} | MODELOPT}),
    Case(name="modelopt-default", code="D9", readings=(L36,),
         config={"architectures": LLAMA3, "num_eagle_features": 3, "eagle_config": {"use_aux_hidden_state": True}}),
    Case(name="modelopt-no-aux", code="D10", readings=("norm(h[36])",), recurrent="unknown",
         config={"architectures": LLAMA3, "eagle_config": {"use_aux_hidden_state": False} | MODELOPT}),
    Case(name="no-aux-with-ids", code="D10", readings=("norm(h[36])",), recurrent="unknown",
         config={"architectures": LLAMA3, "eagle_config": {"use_aux_hidden_state": False, NESTED: [1, 17, 32]}}),
    Case(name="no-aux-in-text-config", code="D10", readings=("norm(h[36])",), recurrent="unknown",
         config={"architectures": LLAMA3, "text_config": {"eagle_config": {"use_aux_hidden_state": False}}}),
    Case(name="angelslim-template", code="D11", readings=(L36,),
         config={"architectures": ["Eagle3LlamaForCausalLM"], "draft_vocab_size": 32000, "target_model_type": "qwen3"}),
    Case(name="angelslim-published", code="D11", readings=(L36,),
         config={"architectures": LLAMA3, "draft_vocab_size": 32000, "modal_type": "LLM", "head_dim": 80}),
    Case(name="angelslim-cosyvoice", code="D11", readings=("h[2], h[12], h[21]",), depth=24,
         config={"architectures": ["CosyVoice3Eagle3LlamaForCausalLM"], "draft_vocab_size": 6561,
                 "num_hidden_layers": 24}),
    Case(name="angelslim-nine-ids", code="D11", conventions=(OUT, IN),
         readings=(", ".join(f"h[{i}]" for i in range(2, 11)), ", ".join(f"h[{i}]" for i in range(1, 10))),
         config={"architectures": LLAMA3, "aux_hidden_states_layer_ids": list(range(1, 10)),
                 "eagle_aux_layer_bands": 3}),
    Case(name="torchspec", code="D12", readings=(L36,), config={"architectures": LLAMA3, "model_type": "llama"}),
    Case(name="speculators-0.2", code="D13", readings=(L36,), config=speculators(speculators_version="0.2.0.dev11")),
    Case(name="speculators-0.3", code="D13", readings=("h[3], h[19], h[34]", L36),
         config=speculators(speculators_version="0.3.0")),
    Case(name="speculators-0.4", code="D13", readings=("h[3], h[19], h[34]", L36),
         config=speculators(speculators_version="0.4.1.dev7")),
    Case(name="speculators-0.5-null", code="D14", readings=(L36,), conventions=(None,),
         config=speculators(architectures=["Eagle3DraftModel"], eagle_aux_hidden_state_layer_ids=None,
                            speculators_version="0.5.0.dev5", target_hidden_size=None)),
    Case(name="speculators-0.5-empty", code="D14", readings=(L36,),
         config=speculators(architectures=["Eagle3DraftModel"], eagle_aux_hidden_state_layer_ids=[])),
    Case(name="speculators-four-taps", code="D14", readings=("h[2], h[46], h[91], h[93]",), conventions=(IN,), depth=94,
         config=speculators(architectures=["Eagle3DraftModel"], eagle_aux_hidden_state_layer_ids=[2, 46, 91, 93])),
    Case(name="speculators-post-norm", code="D14", readings=(L36,), recurrent="post_norm",
         config=speculators(architectures=["Eagle3DraftModel"], eagle_aux_hidden_state_layer_ids=[2, 18, 33],
                            norm_output=True)),
    Case(name="converted", code="D15", readings=("h[2], h[24], h[45]", "h[1], h[23], h[44]"), conventions=(OUT, IN),
         depth=48, config=speculators(eagle_aux_hidden_state_layer_ids=[1, 23, 44], norm_before_residual=False)),
    Case(name="deepspec-eagle3", code="D16", readings=("h[2], h[10], h[18], h[26], h[34]",), conventions=(OUT,),
         config={"architectures": ["Qwen3Eagle3Model"], "model_type": "qwen3", "target_layer_ids": [1, 9, 17, 25, 33]}),
    Case(name="deepspec-embedding", code="D16", readings=("embedding, h[10], h[18]",),
         config={"architectures": ["Gemma4Eagle3Model"], "target_layer_ids": [-1, 9, 17]}),
    Case(name="zlab", code="D17", method="dflash", recurrent="unknown", conventions=(OUT,),
         readings=("h[2], h[10], h[18], h[26], h[34]",), config=block([1, 9, 17, 25, 33], num_target_layers=36)),
    Case(name="zlab-unnamed", code="D17", method="dflash", recurrent="unknown", readings=("h[2], h[11]",),
         config={"model_type": "qwen3", "num_target_layers": 41, "dflash_config": {"target_layer_ids": [1, 10]}}),
    Case(name="zlab-null", code="D17", method="dflash", recurrent="unknown", readings=("h[2], h[18], h[34]",),
         config=block(None, num_hidden_layers=3)),
    Case(name="zlab-in-text-config", code="D17", method="dflash", recurrent="unknown", readings=("h[2], h[10]",),
         config={"architectures": ["DFlashDraftModel"],
                 "text_config": {"dflash_config": {"target_layer_ids": [1, 9]}}}),
    Case(name="zlab-2026", code="D18", method="dflash", recurrent="unknown",
         readings=("h[2], h[8], h[15], h[21], h[27], h[33], h[35], h[36]",),
         config={"architectures": ["DFlashDraftModel"], "num_hidden_layers": 6,
                 "dflash_config": {"block_size": 16, "target_layer_ids": [1, 7, 14, 20, 26, 32, 34, 35]}}),
    Case(name="flat-dflash", code="D19", method="dflash", recurrent="unknown",
         readings=("h[25], h[31], h[32], h[33], h[35]",),
         config={"architectures": ["DFlashDraftModel"], "target_layer_ids": [24, 30, 31, 32, 34], "mask_token_id": 7,
                 "num_target_layers": 5, "target_num_hidden_layers": 36}),
    Case(name="flat-dflash-no-ids", code="D19", method="dflash", recurrent="unknown", readings=("h[2], h[34]",),
         config={"architectures": ["DFlashDraftModel"], "num_hidden_layers": 2}),
    Case(name="flat-dflash-in-text-config", code="D19", method="dflash", recurrent="unknown", readings=("h[2], h[10]",),
         config={"model_type": "dflash", "text_config": {"target_layer_ids": [1, 9]}}),
    Case(name="deepspec-dflash", code="D20", method="dflash", recurrent="unknown", readings=("embedding, h[10]",),
         config={"architectures": ["Qwen3DSparkModel"], "target_layer_ids": [-1, 9], "block_size": 7}),
    Case(name="deepspec-dspark", code="D20", method="dspark", recurrent="unknown", readings=("h[6], h[18]",),
         config={"architectures": ["Gemma4DSparkModel"], "target_layer_ids": [5, 17], "markov_rank": 256}),
    Case(name="specforge-dspark", code="D21", method="dspark", recurrent="unknown", readings=("h[2], h[10]",),
         config=block([1, 9], architectures=["DSparkDraftModel"])),
    Case(name="specforge-domino", code="D21", method="dspark", recurrent="unknown", readings=("h[2], h[10]",),
         config={"architectures": ["DFlashDraftModel"],
                 "dflash_config": {"target_layer_ids": [1, 9], "projector_type": "domino"}}),
    Case(name="speculators-dflash", code="D22", method="dflash", recurrent="unknown", conventions=(IN,),
         readings=("h[2], h[10], h[18], h[26], h[34]",),
         config=speculators("dflash", architectures=["DFlashDraftModel"], block_size=8,
                            aux_hidden_state_layer_ids=[2, 10, 18, 26, 34])),
    Case(name="speculators-dflash-by-key-alone", code="D22", method="dflash", recurrent="unknown",
         readings=("h[2], h[10]",),
         config={"aux_hidden_state_layer_ids": [2, 10], "block_size": 8}),
    Case(name="speculators-dspark", code="D22", method="dspark", recurrent="unknown", readings=("h[2], h[10]",),
         config=speculators("dspark", architectures=["DSparkDraftModel"], aux_hidden_state_layer_ids=[2, 10])),
    Case(name="dspark-native", code="D23", method="dspark", recurrent="unknown", readings=("h[2], h[10]",),
         config={"architectures": ["DeepseekV4ForCausalLM"], "dspark_target_layer_ids": [1, 9], "hc_mult": 4,
                 "num_nextn_predict_layers": 1}),
    Case(name="dspark-native-in-text-config", code="D23", method="dspark", recurrent="unknown",
         readings=("h[2], h[10]",),
         config={"architectures": ["KimiK3ForConditionalGeneration"],
                 "text_config": {"dspark_target_layer_ids": [1, 9]}}),
    Case(name="mtp-native", code="D24", method="mtp", recurrent="unknown",
         readings=(EAGLE1, "drafter embedding, h[36]"),
         config={"architectures": ["DeepseekV3ForCausalLM"], "num_nextn_predict_layers": 1}),
    Case(name="mtp-speculators", code="D24", method="mtp", recurrent="unknown",
         readings=("drafter embedding, h[36]", EAGLE1),
         config=speculators("mtp", architectures=["MTPDraftModel"])),
    Case(name="mlp-speculator", code="D25", method="mlp_speculator", recurrent="unknown",
         readings=("norm(h[36])", "h[36]"), config={"model_type": "mlp_speculator", "emb_dim": 4096, "n_predict": 3}),
    Case(name="medusa", code="D26", method="medusa", recurrent="unknown", readings=("norm(h[36])",),
         config={"medusa_num_heads": 3, "medusa_num_layers": 1}),
    Case(name="p-eagle-amazon", code="D27", method="p_eagle", readings=(L36,),
         config={"architectures": LLAMA, "model_type": "llama", "num_hidden_layers": 4, "draft_vocab_size": 32000,
                 "ptd_token_id": 0}),
    Case(name="p-eagle-specforge", code="D27", method="p_eagle", readings=(L36,),
         config={"architectures": ["PEagleDraftModel"], "draft_vocab_size": 32000}),
    Case(name="p-eagle-verl", code="D27", method="p_eagle", readings=(L36,),
         config={"model_type": "llama_peagle", "num_aux_hidden_states": 3}),
    Case(name="p-eagle-speculators", code="D27", method="p_eagle", readings=(L36, "h[3], h[19], h[34]"),
         conventions=(IN, OUT),
         config=speculators("peagle", architectures=["PEagleSpeculator"],
                 eagle_aux_hidden_state_layer_ids=[2, 18, 33])),
    Case(name="home-made", code="D28", readings=("h[3], h[19]", "h[2], h[18]"), conventions=(OUT, IN),
         config={"architectures": LLAMA3, "eagle_config": {"aux_hidden_state_layer_ids": [2, 18], "fc_input_size": 8192,
                                                           "use_aux_hidden_states": True}}),
    Case(name="xllm", code="D28", readings=(L36,), conventions=(IN,),
         config={"architectures": LLAMA3, "layers_to_capture": [2, 18, 33]}),
    Case(name="quark", code="D28", readings=("h[2], h[34], norm(h[36])",), conventions=(None,),
         config={"architectures": LLAMA3, "aux_hidden_layers": [2, -3, -1]}),
    Case(name="flat-eagle-ids", code="D28", readings=(L36, "h[3], h[19], h[34]"), conventions=(IN, OUT),
         config={"architectures": LLAMA3, "eagle_aux_hidden_state_layer_ids": [2, 18, 33]}),
    Case(name="verl-pair", code="D28", readings=(L36, "h[3], h[19], h[34]"),
         config={"architectures": LLAMA3, "target_layer_ids": [1, 17, 32],
                 "eagle_aux_hidden_state_layer_ids": [2, 18, 33]}),
    Case(name="nested-dflash-layer-ids", code="D28", method="dflash", recurrent="unknown",
         readings=("h[2], h[10]", "h[1], h[9]"),
         config={"architectures": ["DFlashDraftModel"], "dflash_config": {"layer_ids": [1, 9]}}),
    Case(name="xllm-in-text-config", code="D28", readings=(L36,),
         config={"architectures": LLAMA3, "text_config": {"layers_to_capture": [2, 18, 33]}}),
)  # fmt: skip
