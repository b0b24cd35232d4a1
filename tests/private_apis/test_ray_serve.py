# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What of Ray Serve's own objects is found without a replica."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
from ray import serve

from serve_warm.private_apis.ray_serve import loaded_models, model_loaders


class Base:
    @serve.multiplexed(max_num_models_per_replica=2)
    async def get_model(self, model_id: str) -> str:
        return model_id


class Deployment(Base):
    def __init__(self) -> None:
        self.model = SimpleNamespace(get_model=None)

    @serve.batch
    async def predict(self, given: list[int]) -> list[int]:
        return given

    async def plain(self, given: int) -> int:
        return given


class Overriding(Base):
    async def get_model(self, model_id: str) -> str:  # type: ignore[override]
        return model_id


@pytest.mark.parametrize(("kind", "names"), [(Deployment, ["get_model"]), (Overriding, [])])
def test_only_multiplexed_methods_load_models(kind: Any, names: list[str]):
    owner = kind()

    found = model_loaders(owner)

    assert [each.__name__ for each in found] == names
    assert all(inspect.ismethod(each) and each.__self__ is owner for each in found)


def test_the_loaded_models_are_those_that_serve_keeps():
    before, after = Deployment(), Deployment()
    setattr(after, "__serve_multiplex_wrapper", SimpleNamespace(models={"de": 1, "fr": 2}))

    assert (loaded_models(before), loaded_models(after)) == ([], ["de", "fr"])
