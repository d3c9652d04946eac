"""``--feature-contract-follow-links``."""

from __future__ import annotations


def test_a_link_that_leaves_the_checkpoint(pytester, kimi, outcomes):
    path = kimi(pytester.path / "ckpt")
    elsewhere = pytester.mkdir("elsewhere") / "weights"
    (path / "model.safetensors").rename(elsewhere)
    (path / "model.safetensors").symlink_to(elsewhere)
    args = ("--feature-contract", "ckpt", "-v")
    refused = pytester.runpytest(*args)
    assert outcomes(refused) == {"contract::schema": "ERROR"}
    refused.stdout.fnmatch_lines(["could not check*leaves the checkpoint*pass --feature-contract-follow-links*"])
    assert pytester.runpytest(*args, "--feature-contract-follow-links").ret == 0
