# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Transcription of an uploaded recording, after Ray Serve's example of speech recognition.

Differs: a small Wav2Vec2 with random weights in place of SenseVoice, recordings are padded to half
seconds, the body of a request is the recording itself, and the model is compiled.
"""

import io
import wave

import numpy as np
import torch
from fastapi import FastAPI, Request
from ray import serve
from ray.serve.handle import DeploymentHandle
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

LETTERS = "_ abcdefghijklmnopqrstuvwxyz'"
HALF_SECOND = 8000
api = FastAPI()


@serve.deployment
class SpeechModel:
    def __init__(self):
        torch.manual_seed(0)
        config = Wav2Vec2Config(
            vocab_size=len(LETTERS),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            conv_dim=(16,) * 7,
            num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=4,
        )
        self.model = Wav2Vec2ForCTC(config).eval()
        self.model.compile(dynamic=False)

    def transcribe(self, recording: bytes) -> str:
        with wave.open(io.BytesIO(recording)) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), dtype=np.int16)
        length = -(-len(samples) // HALF_SECOND) * HALF_SECOND
        values = torch.zeros((1, length))
        values[0, : len(samples)] = torch.from_numpy(samples / 32768)
        with torch.inference_mode():
            best = self.model(values).logits[0].argmax(-1).tolist()
        kept = [token for token, before in zip(best, [0, *best], strict=False) if token != before]
        return "".join(LETTERS[token] for token in kept if token)


@serve.deployment
@serve.ingress(api)
class Transcriptions:
    def __init__(self, model: DeploymentHandle):
        self.model = model

    @api.post("/v1/audio/transcriptions")
    async def transcribe(self, request: Request) -> dict:
        return {"text": await self.model.transcribe.remote(await request.body())}


app = Transcriptions.bind(SpeechModel.bind())
