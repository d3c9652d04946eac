"""Injected faults of a runtime: each is found at its step class and explained; a healthy one gives no finding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from drafting_runtime import Runtime, decoded, prefills, prompts
from hypothesis import given, settings
from hypothesis import strategies as st
from mla_one_by_one import MlaOneByOne
from safetensors.torch import save_file
from tiny_drafters import Tiny
from tiny_mla import TinyMla

from featurecontract.capture import Capture
from featurecontract.contract import Contract, Drafter, Feature, Rope, Target
from featurecontract.findings import Drafted
from featurecontract.gate._drafts import NO_TOKENS, SAMPLED, Drafting
from featurecontract.gate._drafts_judge import judge_drafts
from featurecontract.replay import Redrafted, beyond_chance, localise
from featurecontract.replay._localise import FIRST, LATER, ROPE
from featurecontract.replay._redraft import TokenPair

LENGTHS = (1, 2, 3, 4, 5, 6, 8, 9, 11, 13, 15, 17, 19, 21, 23, 24)
#: Attention that looks far back and sharply, so that angles matter; a base that is nobody's default.
TINY = Tiny(config={"rope_theta": 300.0}, draft_vocab=40)


def contract(**fields):
    given = {
        "name": "d",
        "method": "eagle3",
        "target": Target(num_hidden_layers=6, hidden_size=32, vocab_size=64),
        "drafter": Drafter(hidden_size=32, embedding="own"),
        "features": tuple(Feature(slot=slot, boundary=b, dim=32) for slot, b in enumerate((0, 2, 4))),
        "recurrent_state": "pre_norm",
        "norm_before_residual": False,
    }
    return Contract(**given | fields)


def sharp(tiny):
    """Scale queries and keys, so that what is looked at depends on the angles."""
    tensors = tiny.tensors()
    return tensors | {name: 2 * tensors[name] for name in tensors if "q_proj" in name or "k_proj" in name}


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A target's directory that lends an embedding and a head."""
    place = tmp_path_factory.mktemp("target")
    g = torch.Generator().manual_seed(11)
    tensors = {
        "model.embed_tokens.weight": torch.randn(64, 32, generator=g),
        "lm_head.weight": torch.randn(64, 32, generator=g),
        "model.norm.weight": torch.ones(32),
    }
    save_file(tensors, place / "model.safetensors")
    (place / "config.json").write_text('{"rms_norm_eps": 1e-5, "model_type": "llama", "hidden_size": 32}')
    return place, tensors


@pytest.fixture(scope="module")
def ckpt(tmp_path_factory):
    place = TINY.write(tmp_path_factory.mktemp("ckpt"))
    save_file(sharp(TINY), place / "model.safetensors")
    return place


@pytest.fixture(scope="module")
def drafting(ckpt, target):
    return Drafting(ckpt, contract(), target=target[0])


def permuted(tensors, name, seed=3):
    order = torch.randperm(len(tensors[name]), generator=torch.Generator().manual_seed(seed))
    return tensors | {name: tensors[name][order]}


def found_in(drafting, runtime, *, lengths=LENGTHS, **how):
    capture = prefills(runtime, prompts(TINY, lengths), **how)
    drafted, findings = drafting(capture)
    return drafted, findings


def test_a_healthy_runtime_is_no_finding(drafting):
    runtime = Runtime(sharp(TINY), TINY, theta=300.0)
    drafted, findings = found_in(drafting, runtime)
    assert findings == ()
    assert (drafted.rounds, drafted.compared, drafted.equal, drafted.differing) == (16, 48, 48, 0)
    assert (drafted.reason, drafted.step, drafted.step_class, drafted.explained_by) == ("", None, "", "")
    ((features, tokens),) = prompts(TINY, [20])
    one = Capture(calls=tuple(decoded(runtime, features, tokens)))
    drafted, findings = drafting(one)
    assert (findings, drafted.equal, drafted.phases) == ((), 15, ("prefill", "decode"))


# What the runtime does -> the class, and what explains it.
FAULTS = {
    "head": (lambda t: permuted(t, "lm_head.weight"), {}, FIRST, ""),
    "map": (lambda t: permuted(t, "d2t"), {}, FIRST, ""),
    "map-left-out": (lambda t: t | {"d2t": torch.zeros_like(t["d2t"])}, {}, FIRST, "d2t left out"),
    "map-as-target-ids": (lambda t: t | {"d2t": t["d2t"] - torch.arange(40)}, {}, FIRST, "d2t read as target ids"),
    "embedding": (lambda t: permuted(t, "embed_tokens.weight"), {}, FIRST, ""),
    "theta": (dict, {"theta": 10000.0}, ROPE, "rope theta 10000"),
    "theta-of-nobody": (dict, {"theta": 3.0}, ROPE, ""),
    "style": (dict, {"interleaved": True}, ROPE, "interleaved rope"),
    "recurrent": (dict, {"post": True}, LATER, "the recurrent state post_norm"),
    "position": (dict, {"stuck": True}, LATER, "positions that do not advance in steps 2 and on"),
    "residual": (dict, {"residual_normed": True}, FIRST, "norm_before_residual true"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_injected_fault_is_localised_and_explained(drafting, fault):
    change, flags, step_class, explained_by = FAULTS[fault]
    runtime = Runtime(change(sharp(TINY)), TINY, **{"theta": 300.0} | flags)
    drafted, (item,) = found_in(drafting, runtime)
    assert (item.slug, item.severity, item.rule) == ("draft-tokens-differ", "error", "FC503")
    # Where rope differs already at the first positions, its rise cannot be seen; the class then names it among others.
    classes = (ROPE, FIRST) if step_class == ROPE else (step_class,)
    assert item.details["class"] in classes
    assert item.details["step"] == (2 if step_class == LATER else 1)
    assert (item.details["explained_by"] or "") == explained_by
    assert (drafted.step_class, drafted.explained_by) == (item.details["class"], explained_by)
    if explained_by:
        assert item.cause == f"the runtime drafts 48 of 48 tokens with {explained_by}"
    assert str(drafting.path) in item.next_step or "`" not in item.next_step


def test_targets_head_and_embedding_are_named(drafting, target):
    lent = target[1]
    own = sharp(TINY)
    ids = own["d2t"] + torch.arange(40)
    for changed, name in (
        ({"lm_head.weight": lent["lm_head.weight"][ids]}, "the target's head at the drafter's tokens"),
        ({"embed_tokens.weight": lent["model.embed_tokens.weight"]}, "the target's embedding"),
    ):
        _, (item,) = found_in(drafting, Runtime(own | changed, TINY, theta=300.0))
        assert (item.details["class"], item.details["explained_by"]) == (FIRST, name)
    whole = Runtime(own | {"lm_head.weight": lent["lm_head.weight"]}, TINY, theta=300.0, whole=True)
    _, (item,) = found_in(drafting, whole)
    assert item.details["explained_by"] == "the target's head"


def test_target_ids_that_are_read_as_offsets(tmp_path):
    tiny = Tiny(draft_vocab=20, map_kind="absolute")
    # Low enough that what comes of it is still a token.
    ids = torch.arange(40).roll(7)[:20].sort().values
    tensors = tiny.tensors() | {"d2t": ids, "t2d": torch.zeros(64, dtype=torch.bool).scatter(0, ids, True)}  # noqa: FBT003
    place = tiny.write(tmp_path)
    save_file(tensors, place / "model.safetensors")
    drafting, given = Drafting(place, contract()), prompts(tiny, LENGTHS)
    healthy, findings = drafting(prefills(Runtime(tensors, tiny), given))
    assert (findings, healthy.equal) == ((), 48)
    _, (item,) = drafting(prefills(Runtime(tensors | {"d2t": ids + torch.arange(20)}, tiny), given))
    assert (item.details["class"], item.details["explained_by"]) == (FIRST, "d2t read as offsets")


def test_an_own_embedding_where_the_targets_is_declared(ckpt, target):
    shares = contract(drafter=Drafter(hidden_size=32, embedding="target"))
    drafting = Drafting(ckpt, shares, target=target[0])
    lent = target[1]["model.embed_tokens.weight"]
    drafted, findings = found_in(drafting, Runtime(sharp(TINY) | {"embed_tokens.weight": lent}, TINY, theta=300.0))
    assert (findings, drafted.equal) == ((), 48)
    _, (item,) = found_in(drafting, Runtime(sharp(TINY), TINY, theta=300.0))
    assert item.details["explained_by"] == "its own embedding"


def test_the_contracts_word_is_the_reference(ckpt):
    said = contract(recurrent_state="post_norm", rope=Rope(theta=10000.0))
    drafted, findings = found_in(Drafting(ckpt, said), Runtime(sharp(TINY), TINY, post=True))
    assert (findings, drafted.equal) == ((), 48)
    _, (item,) = found_in(Drafting(ckpt, said), Runtime(sharp(TINY), TINY))
    assert item.details["explained_by"] == "the recurrent state pre_norm"


def test_norms_before_the_projection(tmp_path):
    tiny = Tiny(pre_norm="joint", config={"norm_before_fc": True})
    place = tiny.write(tmp_path)
    without = Tiny(pre_norm="none")
    drafting = Drafting(place, contract(drafter=Drafter(hidden_size=32, embedding="own")))
    given = prompts(tiny, LENGTHS)
    assert drafting(prefills(Runtime(tiny.tensors(), tiny), given))[1] == ()
    capture = prefills(Runtime(tiny.tensors(), without), given)
    _, (item,) = drafting(capture)
    assert item.details["explained_by"] == "the norm before fc left out"
    # At the projection's own input the norm is behind: the same rows then are right, and the norm is not judged.
    behind = Capture(calls=tuple(replace(call, point="projection_input") for call in capture.calls))
    drafted, findings = drafting(behind)
    assert (findings, drafted.equal, drafted.point) == ((), 48, "projection_input")


def test_latent_attention(tmp_path):
    tiny = TinyMla(config={"rope_theta": 300.0})
    drafting = Drafting(tiny.write(tmp_path), contract())

    class Latent(Runtime, MlaOneByOne):
        pass

    given = prompts(tiny, LENGTHS)
    drafted, findings = drafting(prefills(Latent(tiny.tensors(), tiny, theta=300.0), given))
    assert (findings, drafted.equal) == ((), 48)
    for flags, explained_by in (
        ({"post": True}, "the recurrent state post_norm"),
        ({"interleaved": False}, "rotate-half rope"),
        ({"theta": 10000.0}, "rope theta 10000"),
    ):
        _, (item,) = drafting(prefills(Latent(tiny.tensors(), tiny, **{"theta": 300.0} | flags), given))
        assert item.details["explained_by"] == explained_by


def test_a_map_of_every_second_token_has_one_reading_less(tmp_path):
    tiny = Tiny(draft_vocab=32)
    tensors = tiny.tensors() | {"d2t": torch.arange(32), "t2d": torch.arange(64) % 2 == 0}
    place = tiny.write(tmp_path)
    save_file(tensors, place / "model.safetensors")
    served = tensors | {"d2t": torch.zeros(32, dtype=torch.int64)}
    _, (item,) = Drafting(place, contract())(prefills(Runtime(served, tiny), prompts(tiny, LENGTHS)))
    assert item.details["explained_by"] == "d2t left out"


def test_one_altered_entry_of_the_map_is_found_by_a_token_that_cannot_be(drafting):
    tensors = sharp(TINY)
    drafts = {
        token
        for call in prefills(Runtime(tensors, TINY, theta=300.0), prompts(TINY, LENGTHS)).calls
        for token in call.draft_tokens
    }
    ids = tensors["d2t"] + torch.arange(40)
    free = next(token for token in range(64) if token not in ids.tolist())
    entry = next(at for at, token in enumerate(ids.tolist()) if token in drafts)
    altered = tensors["d2t"].clone()
    altered[entry] = free - entry
    drafted, (item,) = found_in(drafting, Runtime(tensors | {"d2t": altered}, TINY, theta=300.0))
    assert item.details["impossible"] >= 1
    assert drafted.near_ties == 0
    assert item.details["class"] in (FIRST, LATER)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), dtype=st.sampled_from(["float32", "bfloat16"]))
def test_noise_of_a_healthy_runtime_gives_no_finding(drafting, seed, dtype):
    noise = {"float32": 1e-6, "bfloat16": 2**-9}[dtype]
    g = torch.Generator().manual_seed(seed)
    # Weights as such a runtime loads them, and a rounding error on every row that enters.
    kind = getattr(torch, dtype)
    tensors = {
        name: value.to(kind).float() if value.is_floating_point() else value for name, value in sharp(TINY).items()
    }
    given_prompts = prompts(TINY, LENGTHS, seed=seed)
    noisy = [(f * (1 + noise * torch.randn(f.shape, generator=g)), tokens) for f, tokens in given_prompts]
    capture = prefills(Runtime(tensors, TINY, theta=300.0), noisy, dtype=dtype)
    exact = prefills(Runtime(tensors, TINY, theta=300.0), given_prompts, steps=1)
    calls = tuple(replace(call, values=plain.values) for call, plain in zip(capture.calls, exact.calls, strict=True))
    drafted, findings = drafting(replace(capture, calls=calls))
    assert findings == ()
    assert drafted.compared == 48


@pytest.mark.parametrize(
    ("fields", "files", "said"),
    [
        ({"method": "mtp"}, {}, "a drafter by mtp is not replayed"),
        ({}, {"own_embedding": False}, "shares the target's embedding: give --target DIR"),
        ({}, {"drop": "lm_head.weight"}, "shares the target's output head: give --target DIR"),
        ({}, {"drop": "*"}, "the drafter's weights are not at hand"),
        ({}, {"rename": ("midlayer.", "other.")}, "hold neither midlayer.* nor layers.0.*"),
        ({}, {"rename": ("q_proj", "q_a_proj")}, "latent attention (MLA) needs it"),
        ({}, {"quantised": True}, "plain floating-point weights only"),
        ({}, {"drop": "midlayer.self_attn.o_proj.weight"}, "is missing from the checkpoint"),
        ({}, {"config": {"model_type": "gemma3_text"}}, "is not replayed"),
    ],
)
def test_what_cannot_be_replayed_is_one_line_and_no_finding(tmp_path, fields, files, said):
    tiny = Tiny(own_embedding=files.get("own_embedding", True), config=files.get("config", {}))
    place = tiny.write(tmp_path)
    tensors = tiny.tensors()
    if "rename" in files:
        tensors = {name.replace(*files["rename"]): value for name, value in tensors.items()}
    if files.get("quantised"):
        tensors["fc.weight"] = tensors["fc.weight"].to(torch.int8)
    tensors.pop(files.get("drop", ""), None)
    if files.get("drop") == "*":
        (place / "model.safetensors").unlink()
    else:
        save_file(tensors, place / "model.safetensors")
    runtime = Runtime(Tiny().tensors(), Tiny())
    drafted, findings = Drafting(place, contract(**fields))(prefills(runtime, prompts(tiny, [5])))
    assert findings == ()
    assert said in drafted.reason
    assert "\n" not in drafted.reason
    assert drafted.compared == 0


def test_captures_without_draft_tokens_or_with_a_gap_say_so(drafting):
    capture = prefills(Runtime(sharp(TINY), TINY), prompts(TINY, [6]))
    without = replace(capture, calls=tuple(replace(call, draft_tokens=None) for call in capture.calls))
    assert drafting(without)[0].reason == NO_TOKENS
    cached = replace(capture, calls=tuple(replace(call, positions=tuple(range(8, 14))) for call in capture.calls))
    drafted, findings = drafting(cached)
    assert findings == ()
    assert "no round can be compared: rows before them were not captured" in drafted.reason
    assert sum(drafted.skipped.values()) == 1
    assert drafting(capture, phase="decode")[0].reason == NO_TOKENS
    assert drafting(replace(capture, extra={"drafts_sampled": True}))[0].reason == SAMPLED
    assert drafting(replace(capture, extra={"drafts_sampled": False}))[0].compared == 3


def test_a_single_difference_among_few_is_open(drafting):
    capture = prefills(Runtime(sharp(TINY), TINY, theta=300.0), prompts(TINY, LENGTHS))
    known = (sharp(TINY)["d2t"] + torch.arange(40)).tolist()
    first = capture.calls[0]
    wrong = next(token for token in known if token not in first.draft_tokens)
    calls = (replace(first, draft_tokens=(*first.draft_tokens[:2], wrong)), *capture.calls[1:])
    _, (item,) = drafting(replace(capture, calls=calls))
    assert (item.slug, item.unchecked, item.details["differing"]) == ("inconclusive", True, 1)


def pair(step, position, *, differs, gap=3.0):
    return TokenPair(step, position, 1, 2 if differs else 1, gap if differs else 0.0, near=not differs)


def test_the_place_of_differences():
    assert localise([pair(2, 5, differs=True)] * 3 + [pair(1, 5, differs=False)] * 9).step_class == LATER
    everywhere = [pair(1, at, differs=at % 2 == 0) for at in range(40)]
    assert localise(everywhere).step_class == FIRST
    rising = [pair(1, at, differs=at > 14) for at in range(40)]
    assert (localise(rising).step, localise(rising).step_class) == (1, ROPE)
    falling = [pair(1, at, differs=at < 25) for at in range(40)]
    assert localise(falling).step_class == FIRST
    # A token outside of the vocabulary is no matter of angles, wherever it stands.
    outside = [pair(1, at, differs=at > 14, gap=float("inf")) for at in range(40)]
    assert localise(outside).step_class == FIRST
    # One chance difference at step 1 does not hide what begins at step 2.
    mostly = [pair(1, 9, differs=True)] + [pair(1, at, differs=False) for at in range(99)]
    assert localise([*mostly, *[pair(2, at, differs=True) for at in range(50)]]).step == 2


def test_two_explanations_are_candidates_and_no_cause():
    pairs = [pair(1, at, differs=True) for at in range(20)]
    right = Redrafted(pairs=[pair(1, at, differs=False) for at in range(20)])
    wrong = Redrafted(pairs=pairs)
    half = Redrafted(pairs=[pair(1, at, differs=at > 10) for at in range(20)])
    tried = [("rope theta 10000", "rope", right), ("d2t left out", "map", right), ("interleaved rope", "rope", half)]
    place = {"path": "ckpt", "target": "", "runtime": "mine==1.0"}
    drafted, (item,) = judge_drafts(Drafted(rounds=20), pairs, lambda: tried, **place)
    assert (drafted.explained_by, item.details["explained_by"]) == ("", None)
    assert item.details["candidates"] == ["rope theta 10000", "d2t left out"]
    assert "rope theta 10000 or with d2t left out; these rounds cannot tell which" in item.cause
    assert item.next_step.endswith("featurecontract check ckpt --runtime mine==1.0 --digests")
    _, (item,) = judge_drafts(Drafted(rounds=20), pairs, lambda: [("d2t left out", "map", wrong)], **place)
    assert (item.details["candidates"], item.cause) == ([], "")


def test_chance():
    assert not beyond_chance(0, 1000)
    assert not beyond_chance(1, 30)
    assert beyond_chance(1, 30, impossible=1)
    assert beyond_chance(2, 100)
    assert not beyond_chance(8, 5000)
    assert beyond_chance(20, 5000)
