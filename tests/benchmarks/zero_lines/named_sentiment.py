# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A text classifier behind FastAPI, after Ray Serve's example with DistilBERT.

Differs: a small DistilBERT with random weights and a vocabulary of letters on the CPU, and texts
that are padded to lengths of three kinds. Compiles nothing.
"""

import torch
from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    PreTrainedTokenizerFast,
    pipeline,
)

api = FastAPI()


def load_tokenizer() -> PreTrainedTokenizerFast:
    letters = ["[PAD]", "[UNK]", *"abcdefghijklmnopqrstuvwxyz.,!?'"]
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_max_length=96
    )


@serve.deployment
class DistilBertModel:
    def __init__(self):
        torch.manual_seed(0)
        config = DistilBertConfig(
            vocab_size=64, dim=32, hidden_dim=64, n_layers=2, n_heads=2, max_position_embeddings=96
        )
        self.classifier = pipeline(
            "text-classification",
            model=DistilBertForSequenceClassification(config).eval(),
            tokenizer=load_tokenizer(),
        )

    def classify(self, sentence: str) -> dict:
        return self.classifier(sentence, padding=True, pad_to_multiple_of=32, truncation=True)[0]


@serve.deployment
@serve.ingress(api)
class APIIngress:
    def __init__(self, model: DeploymentHandle):
        self.model = model

    @api.get("/classify")
    async def classify(self, sentence: str) -> dict:
        return await self.model.classify.remote(sentence)


app = APIIngress.bind(DistilBertModel.bind())
