"""The story: a Kimi-K2.5 drafter trained on cat([embedding, h3, h31]), and what SGLang and vLLM would feed it."""

from __future__ import annotations

from featurecontract.gate import check, predict, prediction_changes

KIMI = "Kimi-K2.5:61,7168,DeepseekV3ForCausalLM"


def wrong(report):
    """Return (slug, severity) of everything above a note."""
    return [(item.slug, item.severity) for item in report.findings if item.severity != "note"]


def fed(report):
    return {item.runtime: item.wiring.boundaries for item in report.predicted}


def test_sglang_0_5_12_feeds_3_31_59_and_misses_the_embedding(kimi):
    report = check(kimi.declare("0,3,31").path, runtimes=["sglang==0.5.12"])
    assert fed(report) == {"sglang==0.5.12": (3, 31, 59)}
    assert wrong(report) == [("embedding-missing", "error")]
    assert report.exit_status == 1
    (finding,) = [item for item in report.findings if item.slug == "embedding-missing"]
    assert finding.slots == (0,)
    assert finding.columns == ((0, 7168),)
    assert finding.details == {"appended": [59]}
    assert finding.next_step == (
        "SGLang 0.5.12 cannot express [embedding, h[3], h[31]] on this target; from 0.5.14 on write "
        '"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 3, 31]} in the drafter\'s config.json'
    )


def test_the_next_step_works(kimi):
    kimi.declare("0,3,31").config(eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 3, 31]})
    report = check(kimi.path, runtimes=["sglang==0.5.14"])
    assert fed(report) == {"sglang==0.5.14": (0, 3, 31)}
    assert (wrong(report), report.exit_status) == ([], 0)


def test_sglang_0_5_13_feeds_2_30_58(kimi):
    report = check(kimi.declare("0,3,31").path, runtimes=["sglang==0.5.13"])
    assert fed(report) == {"sglang==0.5.13": (2, 30, 58)}
    assert wrong(report) == [("embedding-missing", "error"), ("layer-shift", "error")]


def test_vllm_feeds_2_30_58_by_both_runners_v2_by_luck(kimi):
    report = predict(kimi.path, target=KIMI, runtimes=["vllm==0.32"])
    assert fed(report) == {"vllm-v1==0.32": (2, 30, 58), "vllm-v2==0.32": (2, 30, 58)}
    assert [(item.slug, item.severity, item.runtime) for item in report.findings if item.severity != "note"] == [
        ("ids-defaulted", "warning", "vllm-v2==0.32")
    ]
    checked = check(kimi.declare("2,30,58").path, runtimes=["vllm==0.32"])
    assert wrong(checked) == [("ids-defaulted", "warning")]
    assert checked.exit_status == 0
    assert check(kimi.path, runtimes=["vllm==0.32"], strict=True).exit_status == 1


def test_vllm_cannot_feed_the_embedding_on_this_target(kimi):
    kimi.declare("0,3,31").config(eagle_config=None, eagle_aux_hidden_state_layer_ids=[0, 3, 31])
    report = check(kimi.path, runtimes=["vllm==0.32"])
    assert wrong(report) == [("embedding-unexpressible", "error")] * 2
    for item in report.findings:
        assert item.details["when"] == "at the first request"
        assert "nor can any version up to 0.33.0" in item.next_step
        assert "sglang==" in item.next_step  # which can


def test_the_flip_between_0_5_12_and_0_5_13(kimi):
    kimi.declare("3,31,59")
    assert check(kimi.path, runtimes=["sglang==0.5.12"]).exit_status == 0
    report = check(kimi.path, runtimes=["sglang==0.5.13"])
    assert wrong(report) == [("layer-shift", "error")]
    (finding,) = [item for item in report.findings if item.severity == "error"]
    assert (finding.details, finding.slots) == ({"shift": -1}, (0, 1, 2))
    both = predict(kimi.path, target=KIMI, runtimes=["sglang==0.5.12", "sglang==0.5.13"])
    assert fed(prediction_changes(both)) == {"sglang==0.5.12": (3, 31, 59), "sglang==0.5.13": (2, 30, 58)}
    same = predict(kimi.path, target=KIMI, runtimes=["sglang==0.5.11", "sglang==0.5.12"])
    assert prediction_changes(same).predicted == ()


def test_the_flag_that_misled_the_team(kimi):
    flags = "--speculative-eagle-topk 1 --speculative-num-steps 1 --speculative-num-draft-tokens 16"
    kimi.declare("3,31,59")
    forced = check(kimi.path, runtimes=["sglang==0.5.12"], serve_args=f"--speculative-algorithm EAGLE3 {flags}")
    assert wrong(forced) == [("draft-tokens-forced", "error")]
    (finding,) = [item for item in forced.findings if item.slug == "draft-tokens-forced"]
    assert (finding.details["requested"], finding.details["effective"]) == (16, 2)
    missing = check(kimi.path, runtimes=["sglang==0.5.12"], serve_args=flags)
    assert wrong(missing) == [("algorithm-missing", "error")]
