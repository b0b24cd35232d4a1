# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What the routes of a deployment say about requests that no input declares."""

# No annotations as texts: Serve copies the app, and FastAPI could not find their names.
from typing import Annotated

from fastapi import FastAPI, Query
from pydantic import BaseModel, Field
from ray import serve

from serve_warm import Input
from serve_warm.replica.replay.narrow import vary


class Search(BaseModel):
    texts: list[str]
    normalize: bool = False
    top: int = Field(5, alias="topK")


searches = FastAPI()


@serve.ingress(searches)
class Searching:
    @searches.post("/search")
    def search(
        self, body: Search, *, trace: bool = False, page: Annotated[int, Query()] = 1
    ) -> None: ...


def test_optional_fields_of_a_request_are_named():
    """FastAPI and pydantic know them, although no declared body has them."""
    # Serve's class closes its app when it goes, and this one never began.
    owner = object.__new__(type("Owner", (Searching,), {"__del__": lambda _: None}))
    one = Input(target="POST /search?page=2", json={"texts": ["a"], "topK": 3})
    _, opaque = vary([one], owner)
    of = "of 'POST /search', always its default"
    assert [line for line in opaque if "default" in line] == [
        f"query.trace {of}",
        f"json.normalize {of}",
    ]
    assert not [line for line in vary([one], object())[1] if "default" in line]
