#!/usr/bin/env bash
# The story that started the project, in four commands. Run it with `make demo`.
set -u
here=$(cd "$(dirname "$0")" && pwd)
work=${1:-$(mktemp -d)}
python=${PYTHON:-python}
fc() { echo; echo "\$ featurecontract $*"; "$python" -m featurecontract.cli "$@"; }
expect() { local want=$1; shift; "$@"; local got=$?; if [ $got -ne "$want" ]; then echo "exit status $got, expected $want"; exit 1; fi; }

cd "$work" || exit 1
"$python" "$here/make_checkpoint.py" ckpt >/dev/null || exit 1
cp "$here/target.json" target.json

# 1. What would every known runtime feed for this checkpoint? No contract, no GPU, no torch.
expect 0 fc predict ckpt --target target.json

# 2. The training run used the embedding, h[3] and h[31]. Say so, once, beside the checkpoint.
expect 0 fc init ckpt --target target.json --features 0,3,31 --name kimi-k2.5-drafter --force

# 3. The gate: SGLang 0.5.12 would feed h[3], h[31], h[59]. It fails, and says from which version on it can be written.
expect 1 fc check ckpt --target target.json --runtime sglang==0.5.12

# 4. The fix: SGLang 0.5.14, and the ids that it reads as declared. The gate passes.
echo; echo "edit ckpt/config.json as the next step says: eagle_aux_hidden_state_layer_ids from [2, 30, 58] to [0, 3, 31]"
"$python" - <<'PY' || exit 1
import json
config = json.load(open("ckpt/config.json"))
config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [0, 3, 31]
json.dump(config, open("ckpt/config.json", "w"), indent=2)
PY
expect 0 fc check ckpt --target target.json --runtime sglang==0.5.14
echo; echo "the story ran as told: 0.5.12 fails the gate, 0.5.14 with [0, 3, 31] passes it"
