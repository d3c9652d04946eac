"""Versions that no runtime can have are refused; those that nobody has read are said."""

from __future__ import annotations

import pytest

from featurecontract.errors import UsageError
from featurecontract.runtimes import choose


@pytest.mark.parametrize("text", ["sglang==1!0.5.14", "vllm==0!0.33.0", "llama.cpp==2!1", "vllm-v1==7!0.20"])
def test_epochs_are_refused(text):
    if text == "vllm==0!0.33.0":
        assert choose(text)  # an epoch of zero is no epoch
        return
    with pytest.raises(UsageError, match="epoch"):
        choose(text)


@pytest.mark.parametrize("name", ["sglang", "vllm", "vllm-v1", "atom", "lmdeploy"])
def test_builds_are_llama_cpps(name):
    with pytest.raises(UsageError, match=r"only llama\.cpp"):
        choose(f"{name}==b6000")
    assert choose("llama.cpp==b6000")


def reasons(text):
    return [item.details["reason"] for choice in choose(text) for item in choice.findings]


@pytest.mark.parametrize("text", ["sglang==0.5.12.post2", "sglang==0.5.0", "sglang==0.5.4.post9", "vllm-v1==0.15.0.1"])
def test_a_version_between_releases_that_is_none_of_them_is_said(text):
    assert reasons(text) == ["unlisted"]
    (choice,) = choose(text)
    assert choice.findings[0].slug == "runtime-newer"


@pytest.mark.parametrize(
    "text",
    ["sglang==0.5.12", "sglang==0.5.13rc1", "sglang==0.5.12+cu129", "sglang==0.5.13.dev3", "vllm-v1==0.32", "atom"],
)
def test_releases_and_their_previews_are_known(text):
    assert [item for item in reasons(text) if item == "unlisted"] == []
