"""`noise-above-floor`: silent on what a precision explains, a note where it may, a warning where nothing does."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from tiny_runs import probe_of, run, tokens, weights  # noqa: E402

from featurecontract.gate import verify_captures  # noqa: E402
from featurecontract.identify._calibration import LEAST_SIMILARITY, least_similarity  # noqa: E402
from featurecontract.identify._noise import bits_of  # noqa: E402
from featurecontract.identify.mutators import capture_of, with_dtype  # noqa: E402

WIRING = (2, 5, 7)
FLOOR = 0.9996
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def made():
    """Return (probe, contract, a function that gives the capture of a run with damaged planes)."""
    model, ids = weights(), tokens()
    planes = run(model, ids)
    probe, contract = probe_of(planes, WIRING, ids, model.norm)
    slots = [planes.boundary[b] for b in WIRING]

    def capture(alike, dtype=torch.bfloat16):
        """Turn rows until each slot's similarity is about ``alike``, sizes kept: what rounded weights do."""
        generator = torch.Generator().manual_seed(4)
        noisy = []
        for item in slots:
            centre, spread = item.mean(dim=0, keepdim=True), item.std(dim=0, keepdim=True)
            noise = torch.randn(item.shape, generator=generator) * spread
            noisy.append(centre + (item - centre) * alike + noise * (1 - alike**2) ** 0.5)
        return with_dtype(capture_of(noisy, token_ids=tuple(ids.tolist())), dtype)

    return replace(probe, floor=FLOOR), contract, capture


def found(probe, contract, capture):
    report = verify_captures(contract, probe, [capture], path="x")
    return [(item.slug, item.severity) for item in report.findings], report


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_another_dtype_is_explained(made, dtype):
    probe, contract, capture = made
    assert found(probe, contract, capture(1.0, dtype))[0] == []


@pytest.mark.parametrize("alike", [0.9, 0.75, 0.62])
def test_what_4_bits_explain_is_a_note_where_nobody_said(made, alike):
    probe, contract, capture = made
    listed, report = found(probe, contract, capture(alike))
    assert listed == [("noise-above-floor", "note")]
    assert report.findings[0].slots == (0, 1, 2)
    assert report.exit_status == 0


def test_noise_of_3_bits_is_a_warning_in_a_run_that_claims_none_and_else_a_note(made):
    """As noisy as int3 makes the middle of SmolLM2: a healthy int3 server that nobody spoke of looks the same."""
    probe, contract, capture = made
    listed, report = found(probe, contract, capture(0.45))
    assert ("noise-above-floor", "note") in listed
    assert report.exit_status == 0
    claimed = replace(capture(0.45), extra={"quantization": "none"})
    assert ("noise-above-floor", "warning") in found(probe, contract, claimed)[0]
    strict = verify_captures(contract, probe, [claimed], path="x", strict=True)
    assert strict.exit_status == 1
    item = next(item for item in report.findings if item.slug == "noise-above-floor")
    assert item.details["similarity"] < item.details["expected"] == 0.5
    assert item.details["floor"] == FLOOR


@pytest.mark.parametrize("said", ["none", "bfloat16"])
def test_a_run_that_claims_no_quantisation_is_taken_at_its_word(made, said):
    probe, contract, capture = made
    for alike, expected in ((1.0, []), (0.75, [("noise-above-floor", "warning")])):
        claimed = replace(capture(alike), extra={"quantization": said})
        assert found(probe, contract, claimed)[0] == expected


@pytest.mark.parametrize(
    ("said", "severity"),
    [
        *((name, "warning") for name in ("w4a16", "mxfp4", "Q4_K_M")),
        *((name, "note") for name in ("awq", "gptq", "compressed-tensors", "gguf")),
    ],
)
def test_a_declared_quantisation_explains_its_noise(made, said, severity):
    probe, contract, capture = made
    declared = replace(contract, target=replace(contract.target, quantization=said))
    assert found(probe, declared, capture(0.62))[0] == []
    assert found(probe, contract, replace(capture(0.62), extra={"quantization": said}))[0] == []
    # A method that states no bits may be of 2.
    assert ("noise-above-floor", severity) in found(probe, declared, capture(0.45))[0]


def test_8_bits_do_not_explain_the_noise_of_4(made):
    probe, contract, capture = made
    declared = replace(contract, target=replace(contract.target, quantization="fp8"))
    assert found(probe, declared, capture(0.98))[0] == []
    assert found(probe, declared, capture(0.75))[0] == [("noise-above-floor", "warning")]


def test_the_embedding_and_what_is_not_sure_have_no_noise_finding(made):
    probe, contract, capture = made
    assert ("noise-above-floor", "warning") not in found(probe, contract, capture(0.15))[0]


def test_a_noisier_floor_explains_more():
    assert least_similarity(16, floor=1.0) == LEAST_SIMILARITY[16]
    assert least_similarity(16, floor=0.99) == pytest.approx(0.9)
    assert least_similarity(16, floor=0.5) == 0.8
    assert least_similarity(3, floor=1.0) == 0.0
    assert all(least_similarity(bits, floor=FLOOR) <= value for bits, value in LEAST_SIMILARITY.items())


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("", 16), ("none", 16), ("bfloat16", 16), ("fp16", 16), ("fp8", 8), ("fp8_e4m3", 8), ("int8", 8), ("w8a8", 8),
        ("awq", None), ("gguf", None), ("nvfp4", 4), ("mxfp4", 4), ("Q3_K_S", 3), ("IQ2_XS", 2), ("w4a16", 4),
        ("8bit", 8), ("bitsandbytes", None), ("modelopt", None),
    ],
)  # fmt: skip
def test_bits_by_name(name, bits):
    assert bits_of(name) == bits
