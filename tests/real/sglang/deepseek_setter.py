"""Print what the setter of SGLang's DeepSeek class keeps for lists of ids, on a target of 61 layers; nothing is run."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace


def main():
    from sglang.srt.models.deepseek_v2 import DeepseekV2ForCausalLM

    kept = []
    for ids in json.loads(sys.argv[1]):
        inner = SimpleNamespace(layers_to_capture=[])
        model = SimpleNamespace(
            pp_group=SimpleNamespace(is_last_rank=True),
            config=SimpleNamespace(num_hidden_layers=61),
            model=inner,
        )
        DeepseekV2ForCausalLM.set_eagle3_layers_to_capture(model, ids)
        kept.append(list(inner.layers_to_capture))
    sys.stdout.write(f"\n{json.dumps(kept)}\n")


if __name__ == "__main__":
    main()
